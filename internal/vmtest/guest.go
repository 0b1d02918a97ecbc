package vmtest

// Names inside the guest, on which the host and vminit agree.
const (
	// InitFile is vminit.
	InitFile = "/init"
	JobFile  = "/job.json"
	// MachineFile is the Machine that the guest is to be.
	MachineFile = "/machine.json"
	// ModulesDir is a directory of kernel modules, in the order of insertion.
	ModulesDir = "/modules"
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

// GuestJob is what vminit is to run.
type GuestJob struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
	// Copy are the files to take along to Disk, where the job is to run under
	// the systemd that is there; nil is no disk.
	Copy []string `json:"copy,omitempty"`
}

// GuestReport is one JSON record on ResultPort.
type GuestReport struct {
	// Started is the first record: user space runs.
	Started bool `json:"started,omitempty"`
	// Exit is the last record: the command's exit status, and Memory comes with it.
	Exit   *int         `json:"exit,omitempty"`
	Memory *GuestMemory `json:"memory,omitempty"`
}
