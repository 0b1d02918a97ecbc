package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/internal/debian"
	"berth.dev/berth/internal/vmtest"
)

const (
	diskSuite = "bookworm"
	diskBytes = 1 << 30 // sparse
	// diskManifest records what is on the disk, and its hash.
	diskManifest = "systemd.json"
)

// diskTools make a root file system: they are unpacked, like QEMU.
func diskTools() []source {
	return []source{
		{"mmdebstrap", diskSuite, "1.3.5-7"},
		{"genext2fs", diskSuite, "1.5.0-3"},
	}
}

// diskPackages are what the tests need beside the essential ones: systemd with sessions of users,
// containers, and a newcomer's host: a service, its load and a hog.
func diskPackages() []string {
	return []string{
		"systemd-sysv", "libpam-systemd", "dbus-user-session", "podman", "crun", "uidmap",
		"nginx", "wrk", "stress-ng",
	}
}

// diskOptions are mmdebstrap's that decide what is on the disk.
func diskOptions() []string {
	options := []string{
		"--variant=minbase", "--format=ext2", "--include=" + strings.Join(diskPackages(), ","),
		`--aptopt=APT::Install-Recommends "false"`,
		// podman's services only slow the boot down, and so does nginx, which its test starts.
		`--customize-hook=rm -f "$1"/etc/systemd/system/*.wants/podman* "$1"/etc/systemd/system/*.wants/nginx*`,
	}
	for _, dir := range []string{"doc", "man", "locale"} {
		options = append(options, "--dpkgopt=path-exclude=/usr/share/"+dir+"/*")
	}
	return options
}

// diskContent is the content of diskManifest.
type diskContent struct {
	SHA256   string   `json:"sha256"`
	Options  []string `json:"options"`  // diskOptions
	Packages []string `json:"packages"` // "name version"
}

// completeDisk returns what is wrong with a kit's root file system, nil for nothing.
func completeDisk(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, diskManifest))
	if err != nil {
		return err
	}
	var d diskContent
	if err := json.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("read %s: %w", diskManifest, err)
	}
	if !slices.Equal(d.Options, diskOptions()) {
		return fmt.Errorf("%s was made with other options", vmtest.DiskFile)
	}
	got, err := debian.SHA256(filepath.Join(dir, vmtest.DiskFile))
	if err != nil {
		return err
	}
	if got != d.SHA256 {
		return fmt.Errorf("verify %s: sha256 is %s, want %s", vmtest.DiskFile, got, d.SHA256)
	}
	return nil
}

// disk makes a Debian root file system with systemd. mmdebstrap needs to be
// root, or a user with subordinate ids (subuid(5)).
func (f *fetcher) disk(ctx context.Context) error {
	if err := f.apt.Open(ctx, []string{diskSuite}); err != nil {
		return err
	}
	var debs []string
	for _, s := range diskTools() {
		version, err := f.version(ctx, s)
		if err != nil {
			return err
		}
		files, err := f.apt.Download(ctx, f.debs(), []string{s.Package + "=" + version})
		if err != nil {
			return err
		}
		debs = append(debs, files...)
	}
	if err := f.unpack(ctx, "mmdebstrap", debs); err != nil {
		return err
	}
	image := filepath.Join(f.dir, vmtest.DiskFile+".new")
	if err := f.mmdebstrap(ctx, image); err != nil {
		return errors.Join(err, os.RemoveAll(image))
	}
	return f.keepDisk(ctx, image)
}

func (f *fetcher) mmdebstrap(ctx context.Context, image string) error {
	sources, err := os.ReadFile(f.apt.Sources())
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(sources), "\n")
	args := []string{"PATH=" + filepath.Join(f.dir, "mmdebstrap/usr/bin") + ":" + os.Getenv("PATH"), "mmdebstrap", "--quiet"}
	args = append(args, diskOptions()...)
	_, err = f.apt.Run(ctx, f.dir, "env", append(args, diskSuite, image, first)...)
	return err
}

// keepDisk gives the image room and a manifest, and puts it in its place.
func (f *fetcher) keepDisk(ctx context.Context, image string) error {
	if err := os.Truncate(image, diskBytes); err != nil {
		return err
	}
	if _, err := f.apt.Run(ctx, "", "resize2fs", image); err != nil {
		return err
	}
	sum, err := debian.SHA256(image)
	if err != nil {
		return err
	}
	status, err := f.apt.Run(ctx, "", "debugfs", "-R", "cat /var/lib/dpkg/status", image)
	if err != nil {
		return err
	}
	if err := debian.WriteJSON(filepath.Join(f.dir, diskManifest), diskContent{sum, diskOptions(), parseStatus(status)}); err != nil {
		return err
	}
	return os.Rename(image, filepath.Join(f.dir, vmtest.DiskFile))
}

// parseStatus returns the packages of dpkg's status file as "name version".
func parseStatus(text string) []string {
	var packages []string
	var name string
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "Package":
			name = value
		case "Version":
			packages = append(packages, name+" "+value)
		}
	}
	return packages
}
