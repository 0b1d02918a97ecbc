package doctor_test

import (
	"fmt"
	"testing/fstest"

	"berth.dev/berth/doctor"
)

func ExampleInspectDelegation() {
	image := fstest.MapFS{"usr/lib/systemd/system/user@.service": {Data: []byte("[Service]\nDelegate=pids memory cpu\n")}}
	status, err := doctor.InspectDelegation(image, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(status.State+":", status.Reason)
	// Output:
	// absent: user@.service delegates cpu memory pids, not cpuset io
}
