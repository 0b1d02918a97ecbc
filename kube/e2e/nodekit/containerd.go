package nodekit

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Budget is how long a decision of the plugin may take in tests, which are of what is decided,
// however busy the host is. The runtime waits for twice that.
const Budget = 30 * time.Second

// Where containerd of a test listens, in a machine of its own.
const (
	CRI = "/run/containerd.sock"
	NRI = "/run/nri/nri.sock"
)

// Driver is who makes control groups: systemd, asked by runc and kubelet, or both themselves.
type Driver string

// The kubelet's words for them.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

// Containerd is a containerd with its files below dir, which has to be in memory or on a
// disk that overlayfs takes. Programs are where program says; cni is a network plugin, ""
// for none.
func Containerd(dir string, program func(string) string, cni string, driver Driver) (*Process, error) {
	bin, conf := filepath.Join(dir, "cni/bin"), filepath.Join(dir, "cni/net.d")
	for _, d := range []string{bin, conf} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if cni != "" {
		for name, file := range map[string]string{"null": cni, "loopback": program("loopback")} {
			if err := os.Symlink(file, filepath.Join(bin, name)); err != nil {
				return nil, err
			}
		}
		text := `{"cniVersion":"1.0.0","name":"null","plugins":[{"type":"null"}]}`
		if err := os.WriteFile(filepath.Join(conf, "10-null.conflist"), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(`version = 4
root = '%[1]s/root'
state = '/run/containerd'
[plugins.'io.containerd.server.v1.grpc']
  address = '%[2]s'
[plugins.'io.containerd.server.v1.ttrpc']
  address = '%[2]s.ttrpc'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '%[3]s'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['%[4]s']
    conf_dir = '%[5]s'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '%[6]s'
      SystemdCgroup = %[9]t
[plugins.'io.containerd.nri.v1.nri']
  socket_path = '%[7]s'
  plugin_registration_timeout = '%[8]s'
  plugin_request_timeout = '%[8]s'
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = true
`, dir, CRI, Image, bin, conf, program("runc"), NRI, 2*Budget, driver == Systemd)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	path := filepath.Dir(program("containerd-shim-runc-v2")) + ":" + os.Getenv("PATH")
	return &Process{Args: []string{program("containerd"), "--config", config}, Env: []string{"PATH=" + path}, Log: filepath.Join(dir, "containerd.log")}, nil
}

// Listens waits until somebody answers at a socket.
func Listens(network, address string, within time.Duration) error {
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial(network, address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}
