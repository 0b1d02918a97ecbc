package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/internal/debian"
	"berth.dev/berth/internal/vmtest"
)

// source is a package to get, the suite that has it, and the version that the
// tests were last run with.
type source struct{ Package, Suite, Tested string }

// QEMU before version 10 corrupts guests with newer kernels.
func qemuSource() source {
	return source{"qemu-system-x86", "bookworm-backports", "1:10.0.2+ds-2+deb13u1~bpo12+1"}
}

func busyboxSource() source {
	return source{"busybox-static", "bookworm", "1:1.35.0-4+deb12u1+b1"}
}

// kernelSources are the kernels, oldest first; the last is the newest there is.
func kernelSources() []source {
	return []source{
		{"linux-image-cloud-amd64", "bookworm", "6.1.176-1"},
		{"linux-image-cloud-amd64", "bookworm-backports", "6.12.95-1~bpo12+1"},
		{"linux-image-cloud-amd64", "trixie-backports", "7.3.4-1~bpo13+1"},
	}
}

// fetchCommand fills the kit.
func fetchCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fetch", flag.ExitOnError)
	dir := flags.String("dir", kitDir, "where the kit is")
	systemd := flags.Bool("systemd", false, "make a root file system with systemd, too")
	_ = flags.Parse(args) // exits on an error
	return fetch(ctx, os.Stdout, *dir, *systemd)
}

// part is something to fetch: what is wrong with what is there, and how to get it.
type part struct {
	name   string
	damage func(dir string) error
	fetch  func(*fetcher, context.Context) error
}

func fetch(ctx context.Context, out io.Writer, dir string, systemd bool) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	parts := []part{{"the kit", complete, (*fetcher).fetch}}
	if systemd {
		parts = append(parts, part{"the root file system", completeDisk, (*fetcher).disk})
	}
	for _, p := range parts {
		if err := p.get(ctx, out, dir); err != nil {
			return err
		}
	}
	return uncompress(ctx, out, dir)
}

func (p part) get(ctx context.Context, out io.Writer, dir string) error {
	damage := p.damage(dir)
	if damage == nil {
		fmt.Fprintf(out, "%s in %s is complete\n", p.name, dir)
		return nil
	}
	fmt.Fprintf(out, "fetch %s into %s (%v)\n", p.name, dir, damage)
	if err := debian.Is12(ctx); err != nil {
		return err
	}
	f := &fetcher{apt: debian.Apt{Dir: filepath.Join(dir, "apt")}, dir: dir, out: out}
	// The archive may drop a version between its index and the package.
	err := p.fetch(f, ctx)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(out, "once more, with a new index (%v)\n", err)
		err = p.fetch(f, ctx)
	}
	if err != nil {
		return err
	}
	return p.damage(dir)
}

// complete returns what a kit lacks, nil for nothing.
func complete(dir string) error {
	if _, err := vmtest.Open(dir); err != nil {
		return err
	}
	return debian.Verify(dir)
}

type fetcher struct {
	apt debian.Apt
	dir string
	out io.Writer
}

func (f *fetcher) fetch(ctx context.Context) error {
	suites := []string{qemuSource().Suite, busyboxSource().Suite}
	for _, s := range kernelSources() {
		suites = append(suites, s.Suite)
	}
	if err := f.apt.Open(ctx, suites); err != nil {
		return err
	}
	var kit vmtest.Kit
	for _, part := range []func(context.Context, *vmtest.Kit) error{f.qemu, f.busybox, f.kernels} {
		if err := part(ctx, &kit); err != nil {
			return err
		}
	}
	if err := debian.WriteManifest(f.dir); err != nil {
		return err
	}
	return debian.WriteJSON(filepath.Join(f.dir, vmtest.KitFile), kit)
}

// version returns the version that a suite has, and says so if it is not the
// tested one.
func (f *fetcher) version(ctx context.Context, s source) (string, error) {
	version, err := f.apt.Version(ctx, s.Package, s.Suite)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(f.out, "%s %s from %s\n", s.Package, version, s.Suite)
	if version != s.Tested {
		fmt.Fprintf(f.out, "  instead of %s, with which the tests were last run\n", s.Tested)
	}
	return version, nil
}

// qemu gets QEMU and those of its libraries that the host lacks.
func (f *fetcher) qemu(ctx context.Context, kit *vmtest.Kit) error {
	s := qemuSource()
	version, err := f.version(ctx, s)
	if err != nil {
		return err
	}
	debs, err := f.apt.DownloadWithMissing(ctx, f.debs(), s.Package+"="+version, s.Suite)
	if err != nil {
		return err
	}
	if err := f.unpack(ctx, "qemu", debs); err != nil {
		return err
	}
	kit.QEMU = "qemu/usr/bin/qemu-system-x86_64"
	kit.Libs = []string{"qemu/usr/lib/x86_64-linux-gnu", "qemu/lib/x86_64-linux-gnu"}
	kit.Firmware = []string{"qemu/usr/share/qemu", "qemu/usr/share/seabios"}
	return nil
}

func (f *fetcher) busybox(ctx context.Context, kit *vmtest.Kit) error {
	s := busyboxSource()
	version, err := f.version(ctx, s)
	if err != nil {
		return err
	}
	debs, err := f.apt.Download(ctx, f.debs(), []string{s.Package + "=" + version})
	if err != nil {
		return err
	}
	kit.Busybox = "busybox/bin/busybox"
	return f.unpack(ctx, "busybox", debs)
}

func (f *fetcher) kernels(ctx context.Context, kit *vmtest.Kit) error {
	for _, s := range kernelSources() {
		version, err := f.version(ctx, s)
		if err != nil {
			return err
		}
		packages, err := f.apt.Pinned(ctx, s.Package, version)
		if err != nil {
			return err
		}
		debs, err := f.apt.Download(ctx, f.debs(), packages)
		if err != nil {
			return err
		}
		name := "kernel-" + majorMinor(version)
		if err := f.unpack(ctx, name, debs); err != nil {
			return err
		}
		kernel, err := findKernel(f.dir, name)
		if err != nil {
			return err
		}
		kernel.Name = majorMinor(version)
		kit.Kernels = append(kit.Kernels, kernel)
	}
	return nil
}

func (f *fetcher) debs() string { return filepath.Join(f.dir, debian.Debs) }

// unpack lays packages out in a new directory.
func (f *fetcher) unpack(ctx context.Context, name string, debs []string) error {
	return debian.Unpack(ctx, filepath.Join(f.dir, name), debs)
}

// findKernel looks for image and modules, which are not in the same place in
// every Debian release.
func findKernel(root, name string) (vmtest.Kernel, error) {
	one := func(patterns ...string) (string, error) {
		var found []string
		for _, pattern := range patterns {
			files, err := filepath.Glob(filepath.Join(root, name, pattern))
			if err != nil {
				return "", err
			}
			found = append(found, files...)
		}
		if len(found) != 1 {
			return "", fmt.Errorf("%s: %d files match %s, want one", name, len(found), patterns)
		}
		return filepath.Rel(root, found[0])
	}
	image, err := one("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz")
	modules, err2 := one("lib/modules/*/kernel", "usr/lib/modules/*/kernel")
	return vmtest.Kernel{Image: image, Modules: modules}, errors.Join(err, err2)
}

// majorMinor returns "6.12" of "6.12.95-1~bpo12+1".
func majorMinor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(slices.Clip(parts[:min(2, len(parts))]), ".")
}
