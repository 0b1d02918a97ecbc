package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/vmtest"
)

// service makes systemd start this program once users can log in.
const service = `[Unit]
After=systemd-logind.service systemd-user-sessions.service

[Service]
ExecStart=` + vmtest.InitFile + `
StandardOutput=journal+console
`

// startSystemd replaces this process by the systemd of the disk. It returns on
// error only.
func startSystemd(job vmtest.GuestJob) error {
	const root, units = "/disk", "/disk/etc/systemd/system/"
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(vmtest.Disk, root, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", vmtest.Disk, err)
	}
	for _, name := range job.Copy {
		if err := copyProgram(root+name, name); err != nil {
			return err
		}
	}
	if err := os.WriteFile(units+"vmtest.service", []byte(service), 0o644); err != nil {
		return err
	}
	wants := units + "multi-user.target.wants"
	if err := os.MkdirAll(wants, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("../vmtest.service", wants+"/vmtest.service"); err != nil {
		return err
	}
	return switchRoot(root)
}

func copyProgram(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

func switchRoot(root string) error {
	// systemd mounts this one itself, with options of its own.
	if err := unix.Unmount("/sys/fs/cgroup", 0); err != nil {
		return fmt.Errorf("unmount cgroup: %w", err)
	}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run"} {
		if err := unix.Mount(dir, root+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	const init = "/sbin/init"
	return fmt.Errorf("start %s: %w", init, unix.Exec(init, []string{init}, []string{"PATH=/bin:/sbin"}))
}
