// Package guest is what host and guest of a vmtest agree on: file names, the
// job, the reports. It does no I/O.
package guest

// Names inside the guest.
const (
	// Init is vminit.
	Init    = "/init"
	JobFile = "/job.json"
	// MachineFile is the vmtest.Machine that the guest is to be.
	MachineFile = "/machine.json"
	// Modules is a directory of kernel modules, in the order of insertion.
	Modules = "/modules"
	// Marker exists where vminit is PID 1, and nowhere else: tests that change
	// the machine look for it.
	Marker = "/run/vminit"

	// Disk is the root file system of a job that runs under systemd.
	Disk = "/dev/vda"

	// OutPort and ResultPort are virtio-serial ports: what the command writes,
	// and vminit's reports.
	OutPort    = "out"
	ResultPort = "result"
)

// Job is what vminit is to run.
type Job struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	// Copy are the files to take along to Disk, where the job is to run under
	// the systemd that is there; nil is no disk.
	Copy []string `json:"copy,omitempty"`
}

// Report is one JSON record on ResultPort.
type Report struct {
	// Started is the first record: user space runs.
	Started bool `json:"started,omitempty"`
	// Exit is the last record: the command's exit status.
	Exit *int `json:"exit,omitempty"`
}
