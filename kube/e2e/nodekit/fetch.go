package nodekit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/debian"
)

// The library that runc is linked with: for pods the kubelet always asks for a seccomp
// profile.
const (
	seccomp      = "libseccomp-dev"
	seccompSuite = "bookworm"
)

// Fetch builds those of the named programs that dir lacks, or whose file is not the one
// that was built, and says so. With nothing to do it needs no network. Modules come from
// where the go command gets them, with the hashes of pins; libseccomp from the host's own
// Debian mirror.
func Fetch(ctx context.Context, out io.Writer, dir string, names ...string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	k := &Kit{dir}
	record, err := k.record()
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("program %q: there are %s", name, strings.Join(Names(), ", "))
		}
	}
	for _, p := range programs() {
		if !slices.Contains(names, p.name) {
			continue
		}
		why := k.damage(&p, record[p.name])
		if why == "" {
			continue
		}
		fmt.Fprintf(out, "build %s (%s)\n", p.name, why)
		began := time.Now()
		if err := k.build(ctx, out, &p); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		sum, err := debian.SHA256(k.Program(p.name))
		if err != nil {
			return err
		}
		record[p.name] = built{p.key(), sum}
		if err := debian.WriteJSON(filepath.Join(dir, recordFile), record); err != nil {
			return err
		}
		fmt.Fprintf(out, "  %.0f s\n", time.Since(began).Seconds())
	}
	fmt.Fprintf(out, "%s in %s: complete\n", strings.Join(names, ", "), dir)
	return nil
}

// damage says why a program has to be built, "" if it has not.
func (k *Kit) damage(p *program, b built) string {
	if b.Key == "" {
		return "not built yet"
	}
	if b.Key != p.key() {
		return "it was built from other versions"
	}
	sum, err := debian.SHA256(k.Program(p.name))
	if err != nil {
		return err.Error()
	}
	if sum != b.SHA256 {
		return "its sha256 is not the recorded one"
	}
	return ""
}

func (k *Kit) build(ctx context.Context, out io.Writer, p *program) error {
	module := filepath.Join(k.dir, "modules", p.pins)
	if err := os.MkdirAll(module, 0o755); err != nil {
		return err
	}
	for from, to := range map[string]string{p.pins + ".mod": "go.mod", p.pins + ".sum": "go.sum"} {
		text, err := pins.ReadFile("pins/" + from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(module, to), text, 0o644); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-tags", p.tags,
		"-ldflags", "-s -w"+p.ldflags, "-o", k.Program(p.name), p.pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if p.seccomp {
		config, err := k.seccomp(ctx, out)
		if err != nil {
			return err
		}
		// What pkg-config says is no part of the key of the build cache: without the folder in the
		// flags, which are, another checkout's would be used.
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1", "PKG_CONFIG="+config, "CGO_LDFLAGS=-O2 -g -L"+filepath.Join(k.dir, seccomp, "usr/lib/x86_64-linux-gnu"))
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, text)
	}
	return nil
}

// seccomp unpacks libseccomp, and returns a program that says where it is as pkg-config
// does.
func (k *Kit) seccomp(ctx context.Context, out io.Writer) (string, error) {
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return "", errors.New("it needs a C compiler: apt-get install gcc libc6-dev")
	}
	if err := debian.Is12(ctx); err != nil {
		return "", err
	}
	lib := filepath.Join(k.dir, seccomp)
	config := filepath.Join(lib, "pkg-config")
	if _, err := os.Stat(config); err == nil && debian.Verify(k.dir) == nil {
		return config, nil
	}
	apt := debian.Apt{Dir: filepath.Join(k.dir, "apt")}
	if err := apt.Open(ctx, []string{seccompSuite}); err != nil {
		return "", err
	}
	version, err := apt.Version(ctx, seccomp, seccompSuite)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(out, "  %s %s from %s\n", seccomp, version, seccompSuite)
	debs, err := apt.Download(ctx, filepath.Join(k.dir, debian.Debs), []string{seccomp + "=" + version})
	if err != nil {
		return "", err
	}
	if err := debian.Unpack(ctx, lib, debs); err != nil {
		return "", err
	}
	if err := debian.WriteManifest(k.dir); err != nil {
		return "", err
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in\n*--cflags*) echo '-I%[1]s/usr/include' ;;\n*--libs*) echo '-L%[1]s/usr/lib/x86_64-linux-gnu -lseccomp' ;;\nesac\n", lib)
	return config, os.WriteFile(config, []byte(script), 0o755)
}
