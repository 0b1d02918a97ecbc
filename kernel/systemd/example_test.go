package systemd_test

import (
	"fmt"

	"berth.dev/berth/kernel/systemd"
)

func Example() {
	root, err := systemd.Open("/") // plans for it may name files of units' groups
	if err != nil {
		fmt.Println(err)
		return
	}
	// Where systemd runs, this is CPUWeight=50 of cron.service, until the next boot.
	err = root.Files.WriteFile("sys/fs/cgroup/system.slice/cron.service/cpu.weight", "50\n")
	fmt.Println(err)
}
