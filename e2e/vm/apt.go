package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// keyring has the keys of Debian's archive (package debian-archive-keyring).
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt runs apt with an index and a cache of its own below dir. Of the host it
// reads sources and what is installed, and changes nothing.
type apt struct{ dir string }

// open reads the suites' index from the mirror that the host uses.
func (a apt) open(ctx context.Context, suites []string) error {
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, sub), 0o755); err != nil {
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
	if err := os.WriteFile(a.sources(), []byte(text.String()), 0o644); err != nil {
		return err
	}
	_, err = a.run(ctx, "", "apt-get", a.private("update", "-qq")...)
	return err
}

func (a apt) sources() string { return filepath.Join(a.dir, "sources.list") }

// mirror returns the address of the archive that the host gets Debian from.
func (a apt) mirror(ctx context.Context) (string, error) {
	if _, err := a.run(ctx, "", "apt-get", a.options("update", "-qq")...); err != nil {
		return "", err
	}
	text, err := a.run(ctx, "", "apt-get",
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
func (a apt) options(args ...string) []string {
	return append([]string{
		"-o", "Dir::State=" + a.dir,
		"-o", "Dir::State::status=/var/lib/dpkg/status",
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"-o", "Debug::NoLocking=1",
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::Retries=3",
		// Run by root, apt would download as a user who cannot write here.
		"-o", "APT::Sandbox::User=",
	}, args...)
}

// private are options with our own sources in place of the host's.
func (a apt) private(args ...string) []string {
	return a.options(append([]string{
		"-o", "Dir::Etc::sourcelist=" + a.sources(),
		"-o", "Dir::Etc::sourceparts=/dev/null",
	}, args...)...)
}

func (a apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
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

// version returns the highest version of a package that a suite has.
func (a apt) version(ctx context.Context, pkg, suite string) (string, error) {
	text, err := a.run(ctx, "", "apt-cache", a.private("madison", pkg)...)
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

// pinned returns a package and all that it depends on in one exact version, as
// "name=version": a kernel is several such packages in newer releases.
func (a apt) pinned(ctx context.Context, pkg, version string) ([]string, error) {
	todo := []string{pkg + "=" + version}
	seen := map[string]bool{todo[0]: true}
	for i := 0; i < len(todo); i++ {
		text, err := a.run(ctx, "", "apt-cache", a.private("show", todo[i])...)
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

// download gets packages into dir and returns their files.
func (a apt) download(ctx context.Context, dir string, packages []string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	uris, err := a.run(ctx, dir, "apt-get", a.private(append([]string{"download", "--print-uris", "-qq"}, packages...)...)...)
	if err != nil {
		return nil, err
	}
	if _, err := a.run(ctx, dir, "apt-get", a.private(append([]string{"download", "-qq"}, packages...)...)...); err != nil {
		return nil, err
	}
	return parseURIs(dir, uris), nil
}

// downloadWithMissing gets a package and what installing it here would bring
// along, and returns their files.
func (a apt) downloadWithMissing(ctx context.Context, dir, pkg, suite string) ([]string, error) {
	uris, err := a.run(ctx, "", "apt-get", a.private("install", "--print-uris", "-qq", "--reinstall", "--no-install-recommends", "-t", suite, pkg)...)
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, file := range parseURIs("", uris) {
		packages = append(packages, packageOf(file))
	}
	return a.download(ctx, dir, packages)
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
