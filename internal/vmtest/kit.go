package vmtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// KitFile is the name of a kit's description in its directory.
const KitFile = "kit.json"

// DiskFile is the name of a kit's root file system in its directory.
const DiskFile = "systemd.ext4"

// Kit is what guests are made of. Its paths are relative in KitFile, to the
// directory that holds it, and absolute in memory.
type Kit struct {
	// QEMU is qemu-system-x86_64; Libs are directories of shared libraries
	// that the host lacks, Firmware those of ROMs and BIOS.
	QEMU     string   `json:"qemu"`
	Libs     []string `json:"libs,omitempty"`
	Firmware []string `json:"firmware,omitempty"`
	// Busybox is a static busybox.
	Busybox string   `json:"busybox,omitempty"`
	Kernels []Kernel `json:"kernels"`
	// Disk is a root file system with systemd, for Job.Disk; "" where none has
	// been made.
	Disk string `json:"-"`
	// KVM uses the host's virtualisation where the machine keeps real time.
	KVM bool `json:"-"`
	// TSCKHz is the frequency of the host's time-stamp counter, which emulated
	// guests share; 0 leaves it to their kernels to find out.
	TSCKHz int `json:"-"`
}

// Kernel is a kernel and its modules.
type Kernel struct {
	// Name is the kernel's version by its first two numbers, as in "6.12".
	Name string `json:"name"`
	// Image is a bzImage, or the ELF file in it, which boots sooner.
	Image string `json:"image"`
	// Modules is the directory of /lib/modules/RELEASE.
	Modules string `json:"modules"`
}

// Open reads the kit in dir. errors.Is(err, fs.ErrNotExist) is true where none
// has been fetched.
func Open(dir string) (*Kit, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open kit: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, KitFile))
	if err != nil {
		return nil, fmt.Errorf("open kit: %w", err)
	}
	var k Kit
	if err := json.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("open kit %s: %w", dir, err)
	}
	k.resolve(dir)
	for _, name := range append([]string{k.QEMU}, k.images()...) {
		if _, err := os.Stat(name); err != nil {
			return nil, fmt.Errorf("open kit: %w", err)
		}
	}
	if disk := filepath.Join(dir, DiskFile); exists(disk) {
		k.Disk = disk
	}
	k.KVM, k.TSCKHz = kvmUsable(os.DirFS("/")), tscKHz()
	return &k, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func (k *Kit) images() []string {
	var names []string
	for _, kernel := range k.Kernels {
		names = append(names, kernel.Image)
	}
	return names
}

// resolve makes k's paths absolute.
func (k *Kit) resolve(dir string) {
	paths := []*string{&k.QEMU, &k.Busybox}
	for i := range k.Libs {
		paths = append(paths, &k.Libs[i])
	}
	for i := range k.Firmware {
		paths = append(paths, &k.Firmware[i])
	}
	for i := range k.Kernels {
		paths = append(paths, &k.Kernels[i].Image, &k.Kernels[i].Modules)
	}
	for _, p := range paths {
		if *p != "" {
			*p = filepath.Join(dir, *p)
		}
	}
}

// Kernel returns the kernel of that name.
func (k *Kit) Kernel(name string) (Kernel, bool) {
	for _, kernel := range k.Kernels {
		if kernel.Name == name {
			return kernel, true
		}
	}
	return Kernel{}, false
}

// kvmUsable reports whether the processor itself virtualises: some hosts have a
// /dev/kvm that emulates instructions and gives up at many of them.
func kvmUsable(root fs.FS) bool {
	text, err := fs.ReadFile(root, "proc/cpuinfo")
	if err != nil || !bytes.Contains(text, []byte(" vmx")) && !bytes.Contains(text, []byte(" svm")) {
		return false
	}
	file, err := root.Open("dev/kvm")
	if err != nil {
		return false
	}
	return file.Close() == nil
}

// module returns the file of a module, or false where the kernel has it built in.
func (k Kernel) module(name string) (file string, ok bool, err error) {
	found := errors.New("found")
	err = filepath.WalkDir(k.Modules, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base, _, isModule := strings.Cut(d.Name(), ".ko"); isModule && base == name {
			file = p
			return found
		}
		return nil
	})
	if err == found {
		return file, true, nil
	}
	return "", false, err
}

// Build compiles a static program for guests from a package of this module, or
// its tests where test is true, and returns its path in dir. Where dir has it from
// an earlier time and nothing has changed it is not linked again.
func Build(ctx context.Context, dir, pkg string, test bool) (string, error) {
	out := filepath.Join(dir, filepath.Base(pkg))
	// Without the state of the repository, which each commit changes.
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", out}
	if test {
		args = []string{"test", "-c", "-ldflags=-s -w", "-o", out}
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "berth.dev/berth/"+pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return out, nil
}
