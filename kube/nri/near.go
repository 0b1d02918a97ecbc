package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/podwords"
)

// placeNear has a container come from the NUMA nodes of its devices and mounts, where its pod
// asks for it. Nodes that the pod names itself are stronger. What the kernel tells no node of is
// near to every one. A *RefusedError is that nothing is known, where it is a condition.
func (p *Plugin) placeNear(a *asked, r *podwords.Reading, pod *api.PodSandbox, c *api.Container) error {
	near := &r.Wish.Near
	if !near.Asked() {
		return nil
	}
	word := ""
	for _, s := range r.Sources {
		if strings.HasPrefix(s.Field, "near") {
			word = s.From
		}
	}
	problem := func(kind podwords.Kind, format string, args ...any) {
		r.Problems = append(r.Problems, podwords.Problem{Word: word, Kind: kind, Err: fmt.Errorf(format, args...)})
	}
	nodes, things, err := p.nodesOf(near, pod, c)
	if err != nil {
		problem(podwords.NotFollowed, "where its devices and mounts are is not known: %w", err)
		if near.Required() {
			return &RefusedError{podwords.Problems(r.Problems[len(r.Problems)-1:])}
		}
		return nil
	}
	request := &a.spec.Request
	switch {
	case nodes.IsEmpty():
		return nil
	case !request.Nodes.IsEmpty():
		if request.Nodes != nodes {
			problem(podwords.Contradiction, "its devices and mounts are near NUMA nodes %s, and it asks for %s by name; this wins", nodes, request.Nodes)
		}
		return nil
	case near.Pick != nil && *near.Pick && nodes.Len() > 1:
		problem(podwords.NotFollowed, "its devices and mounts are near NUMA nodes %s: own CPUs are not divided over them, and come from the fewest of them", nodes)
	}
	request.Nodes, request.NodesRequired, a.required = nodes, near.Required(), near.Required()
	a.spec.Annotations[agent.SourcePrefix+"nodes"] = fmt.Sprintf("%s: %d of its devices and mounts", word, things)
	return nil
}

// nodesOf are the NUMA nodes with CPUs that a container's devices and mounts are near to, and how
// many of these are near to one.
func (p *Plugin) nodesOf(near *podwords.Near, pod *api.PodSandbox, c *api.Container) (nodes cpuset.Set, things int, err error) {
	fsys := p.opt.Node.Root.FS()
	add := func(device bool, entry string, paths ...string) {
		hardware, err := deviceOf(fsys, entry)
		if err != nil || !near.Concerns(device, append(paths, "/"+hardware)...) {
			return // it has gone, or is none of hardware
		}
		some := nodesOfDevice(fsys, hardware, 0).Intersect(p.nodes)
		if nodes = nodes.Union(some); !some.IsEmpty() {
			things++
		}
	}
	for _, d := range c.GetLinux().GetDevices() {
		kind := "char"
		if d.GetType() == "b" {
			kind = "block"
		}
		add(true, fmt.Sprintf("sys/dev/%s/%d:%d", kind, d.GetMajor(), d.GetMinor()), d.GetPath())
	}
	var mounts []kernel.Mount
	for _, m := range c.GetMounts() {
		if !isData(m, pod.GetUid()) || !near.Concerns(false) {
			continue
		}
		if mounts == nil {
			if mounts, err = kernel.ReadMountsOf(fsys, "1"); err != nil { // the host's, whose paths a runtime means
				return cpuset.Set{}, 0, err
			}
		}
		if device := deviceBelow(mounts, m.GetSource()); device != "" {
			add(false, "sys/dev/block/"+device, m.GetDestination(), m.GetSource())
		}
	}
	return nodes, things, nil
}

// isData reports whether a mount can be of data that a container works on. Every container has
// others: files of its kubelet and its runtime, which lie on the disk of the host's root.
func isData(m *api.Mount, pod string) bool {
	source, to := path.Clean(m.GetSource()), path.Clean("/"+m.GetDestination())
	if m.GetType() != "bind" || !path.IsAbs(source) || slices.Contains(m.GetOptions(), "ro") {
		return false
	}
	system := func(dir string) bool { return kernel.Within(to, dir) }
	if slices.ContainsFunc([]string{"/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sys", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"}, system) {
		return false
	}
	// The kubelet's directory may be any; in it, that of a pod is named by the pod's UID.
	_, of, ok := strings.Cut(source, "/pods/"+pod+"/")
	kubelets := func(dir string) bool { return kernel.Within(of, dir) }
	return !ok || pod == "" || !slices.ContainsFunc([]string{
		"containers", "volumes/kubernetes.io~configmap", "volumes/kubernetes.io~secret", "volumes/kubernetes.io~projected", "volumes/kubernetes.io~downward-api",
	}, kubelets)
}

// deviceBelow is the number of the block device of the file system that a path lies in, "" if
// none. It looks at no file: one on a dead server would hold up the handler.
func deviceBelow(mounts []kernel.Mount, name string) string {
	at := kernel.MountOf(mounts, strings.TrimPrefix(path.Clean(name), "/"))
	if at == nil || strings.HasPrefix(at.Device, "0:") {
		return ""
	}
	return at.Device
}

// maxBelow bounds how many devices may lie on one another.
const maxBelow = 8

// deviceOf is the directory of a device, by a link to it.
func deviceOf(fsys fs.FS, link string) (dir string, err error) {
	target, err := fs.ReadLink(fsys, link)
	return path.Join(path.Dir(link), target), err
}

// nodesOfDevice are the NUMA nodes of a device by its directory: that of the hardware around it or,
// of one that lies on others (the device mapper's), those of these.
func nodesOfDevice(fsys fs.FS, device string, depth int) (nodes cpuset.Set) {
	for dir := device; kernel.Within(dir, "sys/devices") && dir != "sys/devices"; dir = path.Dir(dir) {
		text, err := fs.ReadFile(fsys, dir+"/numa_node")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		node, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || node < 0 {
			return nodes
		}
		nodes, _ = cpuset.Of(node)
		return nodes
	}
	below, _ := fs.ReadDir(fsys, device+"/slaves") // what has none lies on nothing
	for _, e := range below {
		if next, err := deviceOf(fsys, device+"/slaves/"+e.Name()); err == nil && depth+1 < maxBelow {
			nodes = nodes.Union(nodesOfDevice(fsys, next, depth+1))
		}
	}
	return nodes
}
