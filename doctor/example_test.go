package doctor_test

import (
	"fmt"
	"testing/fstest"

	"berth.dev/berth/doctor"
)

func ExampleLook() {
	host := fstest.MapFS{"sys/devices/system/cpu/smt/control": {Data: []byte("notsupported\n")}}
	report := doctor.Look(host, doctor.Probes{})
	smt, _ := report.Get("smt")
	fmt.Printf("%s: %s (%s)\n", smt.Name, smt.State, smt.Found)
	// Output:
	// smt: not applicable (one thread per core)
}
