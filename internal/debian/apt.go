// Package debian gets packages of Debian for tests without installing them: index, cache and
// files are below one directory. Of the host it reads apt's sources and what is installed.
package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// keyring has the keys of Debian's archive (package debian-archive-keyring).
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Apt runs apt with an index and a cache of its own below Dir. Of the host it
// reads sources and what is installed, and changes nothing.
type Apt struct{ Dir string }

// Open reads the suites' index from the mirror that the host uses.
func (a Apt) Open(ctx context.Context, suites []string) error {
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.Dir, sub), 0o755); err != nil {
			return err
		}
	}
	mirror, err := a.mirror(ctx)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, suite := range suites {
		fmt.Fprintf(&text, "deb [signed-by=%s] %s %s main\n", keyring, mirror, suite)
	}
	if err := os.WriteFile(a.Sources(), []byte(text.String()), 0o644); err != nil {
		return err
	}
	_, err = a.Run(ctx, "", "apt-get", a.private("update", "-qq")...)
	return err
}

// Sources is the file that names the suites that Open read.
func (a Apt) Sources() string { return filepath.Join(a.Dir, "sources.list") }

// mirror returns the address of the archive that the host gets Debian from.
func (a Apt) mirror(ctx context.Context) (string, error) {
	if _, err := a.Run(ctx, "", "apt-get", a.options("update", "-qq")...); err != nil {
		return "", err
	}
	text, err := a.Run(ctx, "", "apt-get",
		a.options("indextargets", "--format", "$(REPO_URI)", "Identifier: Packages", "Label: Debian", "Component: main")...)
	if err != nil {
		return "", err
	}
	mirror, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if mirror == "" {
		return "", fmt.Errorf("the host's apt sources have no Debian archive")
	}
	return mirror, nil
}

// options are those of every call: index and cache are our own.
func (a Apt) options(args ...string) []string {
	return append([]string{
		"-o", "Dir::State=" + a.Dir,
		"-o", "Dir::State::status=/var/lib/dpkg/status",
		"-o", "Dir::Cache=" + filepath.Join(a.Dir, "cache"),
		"-o", "Debug::NoLocking=1",
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::Retries=3",
		// Run by root, apt would download as a user who cannot write here.
		"-o", "APT::Sandbox::User=",
	}, args...)
}

// private are options with our own sources in place of the host's.
func (a Apt) private(args ...string) []string {
	return a.options(append([]string{
		"-o", "Dir::Etc::sourcelist=" + a.Sources(),
		"-o", "Dir::Etc::sourceparts=/dev/null",
	}, args...)...)
}

// Run returns what a program prints; an error has its complaints.
func (a Apt) Run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, stderr.String())
	}
	return string(text), nil
}

// Version returns the highest version of a package that a suite has.
func (a Apt) Version(ctx context.Context, pkg, suite string) (string, error) {
	text, err := a.Run(ctx, "", "apt-cache", a.private("madison", pkg)...)
	if err != nil {
		return "", err
	}
	version, ok := parseMadison(text, suite)
	if !ok {
		return "", fmt.Errorf("find %s: not in %s", pkg, suite)
	}
	return version, nil
}

// parseMadison returns the first version of a suite in lines of
//
//	linux-image-cloud-amd64 | 6.1.176-1 | http://mirror/debian bookworm/main amd64 Packages
func parseMadison(text, suite string) (version string, ok bool) {
	for line := range strings.Lines(text) {
		fields := strings.Split(line, "|")
		if len(fields) == 3 && strings.Contains(fields[2], " "+suite+"/main ") {
			return strings.TrimSpace(fields[1]), true
		}
	}
	return "", false
}

// Pinned returns a package and all that it depends on in one exact version, as
// "name=version": a kernel is several such packages in newer releases.
func (a Apt) Pinned(ctx context.Context, pkg, version string) ([]string, error) {
	todo := []string{pkg + "=" + version}
	seen := map[string]bool{todo[0]: true}
	for i := 0; i < len(todo); i++ {
		text, err := a.Run(ctx, "", "apt-cache", a.private("show", todo[i])...)
		if err != nil {
			return nil, err
		}
		for _, dep := range parsePinned(text) {
			if !seen[dep] {
				seen[dep] = true
				todo = append(todo, dep)
			}
		}
	}
	return todo, nil
}

// parsePinned returns the dependencies on one exact version of a package's record.
func parsePinned(record string) []string {
	exact := regexp.MustCompile(`([^\s,]+) \(= ([^)]+)\)`)
	var deps []string
	for line := range strings.Lines(record) {
		if list, ok := strings.CutPrefix(line, "Depends:"); ok {
			for _, m := range exact.FindAllStringSubmatch(list, -1) {
				deps = append(deps, m[1]+"="+m[2])
			}
		}
	}
	return deps
}

// Download gets packages into dir and returns their files.
func (a Apt) Download(ctx context.Context, dir string, packages []string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	empty, err := os.MkdirTemp(dir, "empty") // what is there already has no address
	if err != nil {
		return nil, err
	}
	uris, err := a.Run(ctx, empty, "apt-get", a.private(append([]string{"download", "--print-uris", "-qq"}, packages...)...)...)
	if err := errors.Join(err, os.Remove(empty)); err != nil {
		return nil, err
	}
	if _, err := a.Run(ctx, dir, "apt-get", a.private(append([]string{"download", "-qq"}, packages...)...)...); err != nil {
		return nil, err
	}
	return parseURIs(dir, uris), nil
}

// DownloadWithMissing gets a package and what installing it here would bring
// along, and returns their files.
func (a Apt) DownloadWithMissing(ctx context.Context, dir, pkg, suite string) ([]string, error) {
	uris, err := a.Run(ctx, "", "apt-get", a.private("install", "--print-uris", "-qq", "--reinstall", "--no-install-recommends", "-t", suite, pkg)...)
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, file := range parseURIs("", uris) {
		packages = append(packages, packageOf(file))
	}
	return a.Download(ctx, dir, packages)
}

// parseURIs returns the files of lines of
//
//	'http://mirror/pool/b.deb' busybox_1%3a1.35.0-4_amd64.deb 928188 SHA256:7add
func parseURIs(dir, text string) []string {
	var files []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) >= 3 && strings.HasPrefix(fields[0], "'") {
			files = append(files, filepath.Join(dir, fields[1]))
		}
	}
	return files
}

// packageOf returns "busybox=1:1.35.0-4" of "busybox_1%3a1.35.0-4_amd64.deb".
func packageOf(file string) string {
	name, rest, _ := strings.Cut(file, "_")
	version, _, _ := strings.Cut(rest, "_")
	return name + "=" + strings.ReplaceAll(version, "%3a", ":")
}

// Is12 reports whether packages built for Debian 12 on amd64 run here.
func Is12(ctx context.Context) error {
	arch, err := exec.CommandContext(ctx, "dpkg", "--print-architecture").Output()
	if err != nil {
		return fmt.Errorf("ask dpkg for its architecture (a Debian 12 host is needed): %w", err)
	}
	if a := strings.TrimSpace(string(arch)); a != "amd64" {
		return fmt.Errorf("architecture %s: kits are for amd64", a)
	}
	return nil
}

// Unpack lays packages out in a new directory.
func Unpack(ctx context.Context, dir string, debs []string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, deb := range debs {
		if text, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", deb, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", deb, err, text)
		}
	}
	return nil
}
