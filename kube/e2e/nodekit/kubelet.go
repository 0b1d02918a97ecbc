package nodekit

import (
	"fmt"
	"os"
	"path/filepath"
)

// Address is that of a test's node: one for documentation, on lo.
const Address = "192.0.2.10"

// Kubelet is a kubelet beside Containerd, called node, with its configuration below dir: that of a
// test, and the lines of more. Without an argument --kubeconfig it has no API server.
func Kubelet(dir, program, node string, driver Driver, more string, args ...string) (*Process, error) {
	config := filepath.Join(dir, "kubelet.yaml")
	// A file with no name server: there is no network.
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: %s
enforceNodeAllocatable: [pods]
containerRuntimeEndpoint: unix://%s
failSwapOn: false
makeIPTablesUtilChains: false
readOnlyPort: 0
resolvConf: ""
maxPods: 200
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 500
kubeAPIBurst: 1000
nodeStatusUpdateFrequency: 5s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: "1Mi", nodefs.available: "0%%", imagefs.available: "0%%", nodefs.inodesFree: "0%%"}
`, driver, CRI) + more
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	args = append([]string{program, "--config=" + config, "--root-dir=/var/lib/kubelet", "--cert-dir=" + dir + "/pki", "--hostname-override=" + node, "--node-ip=" + Address}, args...)
	return &Process{Args: args, Log: filepath.Join(dir, "kubelet.log")}, nil
}
