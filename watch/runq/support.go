package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const feature = "run-queue probe"

// Available says whether this host can have the probe: nil, or a
// *kernel.NotSupportedError with the reason and the remedy. It reads files of the
// host, a directory tree such as os.DirFS("/"), and asks the running kernel for a
// BPF map; it loads no program. What only loading shows, Open reports.
func Available(host fs.FS) error {
	if err := inspect(host); err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return explain("create bpf map", err)
	}
	return m.Close()
}

// oldest is the first release with all fields that bpf/runq.c reads.
var oldest = [2]int{5, 16}

// inspect judges by files alone. One that is not there tells nothing, but for
// that of BTF.
func inspect(host fs.FS) error {
	text := func(name string) string {
		text, _ := kernel.ReadText(host, name)
		return text
	}
	release := text("proc/sys/kernel/osrelease")
	if v, ok := parseRelease(release); ok && (v[0] < oldest[0] || v[0] == oldest[0] && v[1] < oldest[1]) {
		return unsupported("kernel "+release+" is too old", fmt.Sprintf("boot a kernel %d.%d or newer", oldest[0], oldest[1]))
	}
	if _, err := fs.Stat(host, "sys/kernel/btf/vmlinux"); errors.Is(err, fs.ErrNotExist) {
		return unsupported("the kernel has no type information (/sys/kernel/btf/vmlinux)", "boot a kernel with CONFIG_DEBUG_INFO_BTF=y")
	}
	if strings.Contains(text("sys/kernel/security/lockdown"), "[confidentiality]") {
		return unsupported("kernel lockdown is in confidentiality mode", "boot with lockdown=integrity or none")
	}
	if missing := missingCapabilities(text("proc/self/status")); missing != "" {
		return unsupported("this process lacks "+missing, "run as root, or grant "+missing)
	}
	return nil
}

func unsupported(reason, remedy string) error {
	return &kernel.NotSupportedError{Feature: feature, Reason: reason, Remedy: remedy}
}

// parseRelease reads the first two numbers of "6.1.0-18-amd64".
func parseRelease(release string) (v [2]int, ok bool) {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		minor = rest[:end]
	}
	for i, text := range []string{major, minor} {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return [2]int{}, false
		}
		v[i] = int(n)
	}
	return v, true
}

// missingCapabilities reads the line CapEff of proc_pid_status(5); without it,
// nothing is known to be missing.
func missingCapabilities(status string) string {
	for line := range strings.Lines(status) {
		text, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		has, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil {
			return ""
		}
		var missing []string
		for _, need := range []struct {
			name string
			any  uint64 // one of these is enough
		}{
			{"CAP_BPF", 1<<unix.CAP_BPF | 1<<unix.CAP_SYS_ADMIN},
			{"CAP_PERFMON", 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_ADMIN},
			{"CAP_DAC_READ_SEARCH", 1 << unix.CAP_DAC_READ_SEARCH}, // open_by_handle_at, for the names of culprits
		} {
			if has&need.any == 0 {
				missing = append(missing, need.name)
			}
		}
		return strings.Join(missing, " and ")
	}
	return ""
}

// explain turns an error of the kernel into what this host lacks, where that is
// what it means.
func explain(operation string, err error) error {
	if known := inspect(os.DirFS("/")); known != nil {
		return known
	}
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && !isVerifierError(err):
		// The library's text supposes a limit of locked memory, which no kernel that has the probe goes by.
		errno, _ := errors.AsType[unix.Errno](err)
		return unsupported(operation+": the system call bpf is refused although the capabilities are there: "+errno.Error(),
			"run it outside of user namespaces, and allow the system call: SystemCallFilter=bpf in a systemd unit, the seccomp profile of a container")
	case errors.Is(err, unix.ENOSYS):
		return unsupported("the kernel has no bpf system call", "boot a kernel with CONFIG_BPF_SYSCALL=y")
	case errors.Is(err, ebpf.ErrNotSupported):
		return unsupported(err.Error(), "boot a newer kernel")
	}
	return fmt.Errorf("%s: %w", operation, err)
}

func isVerifierError(err error) bool {
	var verifier *ebpf.VerifierError
	return errors.As(err, &verifier)
}
