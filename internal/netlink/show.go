package netlink

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ShowDevices has /sys tell of the devices of this process's network namespace. The process
// has mounts of its own, and gives none of them to others: it was started with CLONE_NEWNS.
func ShowDevices() (err error) {
	dir, err := os.MkdirTemp("", "berth-sys-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	if err := mount("sysfs", dir, "sysfs", 0); err != nil {
		return err
	}
	for _, of := range []string{"/class/net", "/devices"} {
		err = errors.Join(err, mount(dir+of, "/sys"+of, "", unix.MS_BIND))
	}
	return errors.Join(err, os.NewSyscallError("umount2", unix.Unmount(dir, unix.MNT_DETACH)))
}

func mount(from, to, kind string, flags uintptr) error {
	if err := unix.Mount(from, to, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, to, err)
	}
	return nil
}
