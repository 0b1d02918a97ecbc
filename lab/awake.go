package lab

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// latencyFile asks for how soon CPUs have to wake up, as a 32-bit number of µs, for as long as
// it is held open (Documentation/power/pm_qos_interface.rst): nothing is left after a kill.
const latencyFile = "/dev/cpu_dma_latency"

// keepAwake has all CPUs of the host poll where they would sleep, until the testbed is closed.
// A CPU of a virtual machine that sleeps is the hypervisor's, which at times takes milliseconds
// to give it back. They are in the tail of whatever leaves CPUs idle, of the tenant alone first
// of all (docs/measurements/lab-awake.md). A CPU that polls takes power and, from its sibling
// thread, speed.
func (b *Testbed) keepAwake() error {
	held, err := awake(latencyFile)
	if err != nil {
		return fmt.Errorf("awake: %w", err)
	}
	b.later = append(b.later, held.Close)
	return nil
}

// keptAwake is what is asked for; where nothing is, on a virtual machine that permits it.
func keptAwake(asked *bool, hypervisor, name string) bool {
	if asked != nil {
		return *asked
	}
	return hypervisor != "" && unix.Access(name, unix.W_OK) == nil
}

func awake(name string) (io.Closer, error) {
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, &kernel.NotSupportedError{Feature: "keeping idle CPUs awake", Reason: err.Error(), Remedy: "run as root, on a kernel with CONFIG_PM and CONFIG_CPU_IDLE"}
	}
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(make([]byte, 4)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
