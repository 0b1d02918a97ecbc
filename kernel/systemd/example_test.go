package systemd_test

import (
	"context"
	"fmt"

	"berth.dev/berth/kernel/systemd"
)

func Example() {
	root, err := systemd.Open("/") // plans for it may name files of units' groups
	if err != nil {
		fmt.Println(err)
		return
	}
	files, ok := root.Files.(*systemd.Files)
	if !ok {
		return // systemd does not run here
	}
	unit, ok, err := files.Owner(context.Background(), "sys/fs/cgroup/system.slice/cron.service")
	fmt.Println(unit, ok, err)
}
