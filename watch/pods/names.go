package pods

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Name is whose a group is. JSON names are those of Kubernetes' objects.
type Name struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid,omitempty"`
	// Container is "" for the group of a whole pod, and Sandbox for the process that only
	// holds a pod's namespaces.
	Container string `json:"container,omitempty"`
	QoS       QoS    `json:"qosClass,omitempty"`
}

// Sandbox stands for a name of the container that only holds a pod's namespaces. No
// container can be called so: names of containers are in lower case.
const Sandbox = "POD"

// String is NAMESPACE/POD or NAMESPACE/POD/CONTAINER.
func (n Name) String() string {
	if n.Container == "" {
		return n.Namespace + "/" + n.Pod
	}
	return n.Namespace + "/" + n.Pod + "/" + n.Container
}

// Where names come from, below the root of the host's files. Only root, the kubelet or the
// runtime can write there.
const (
	// podLogs has a directory NAMESPACE_POD_UID for each pod, with one for each container
	// (BuildPodLogsDirectory in pkg/kubelet/kuberuntime).
	podLogs = "var/log/pods"
	// containerLogs has a link POD_NAMESPACE_CONTAINER-ID.log for each container
	// (legacyLogSymlink there). The sandbox has none.
	containerLogs = "var/log/containers"
)

// bundles are the directories in which runtimes keep a container's OCI configuration; ID
// stands for the container's id.
func bundles() []string {
	return []string{
		"run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json",
		"run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json",
		"run/containers/storage/overlay-containers/ID/userdata/config.json", // CRI-O
		"var/lib/containers/storage/overlay-containers/ID/userdata/config.json",
	}
}

const (
	// maxEntries bounds the names that are read from one directory, maxConfig the bytes of
	// a container's configuration.
	maxEntries = 20_000
	maxConfig  = 1 << 20
	// settled is how old a change of a directory must be before an unchanged time means
	// that nothing has changed since.
	settled = 2 * time.Second
)

// Directory knows the names of the pods and containers of a node. Several goroutines may use
// it.
type Directory struct {
	root fs.FS
	now  func() time.Time

	mu         sync.Mutex
	pods       listing           // by UID
	containers listing           // by id
	bundled    map[string]bundle // by id: what runtimes told, even if that is nothing
}

// listing is what the entries of a directory tell.
type listing struct {
	changed time.Time // the directory, as it was read
	names   map[string]Name
}

// bundle is what a runtime told of a container.
type bundle struct {
	Name
	ok bool
}

// NewDirectory returns a Directory of the host whose files are below a root. Nothing is read
// yet.
func NewDirectory(root fs.FS) *Directory {
	return &Directory{root: root, now: time.Now, bundled: map[string]bundle{}}
}

// Refresh reads again what has changed. Without it nothing new is known, but for
// containers that were never asked for. That there are no such files is no error: the host
// is no node then, or this user may not read them.
func (d *Directory) Refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.bundled)
	return errors.Join(d.pods.read(d, podLogs, podOfLog), d.containers.read(d, containerLogs, containerOfLog))
}

// read reads a directory unless it is as it was. parse returns the key of an entry; a key
// that two entries have is nobody's.
func (l *listing) read(d *Directory, dir string, parse func(entry string) (string, Name, bool)) error {
	info, err := fs.Stat(d.root, dir)
	if err != nil {
		*l = listing{}
		return absent(err)
	}
	if at := info.ModTime(); l.names != nil && !at.IsZero() && at.Equal(l.changed) && d.now().Sub(at) > settled {
		return nil
	}
	entries, err := fs.ReadDir(d.root, dir)
	if err != nil {
		*l = listing{}
		return absent(err)
	}
	*l = listing{info.ModTime(), make(map[string]Name, len(entries))}
	twice := map[string]bool{}
	for _, entry := range entries[:min(len(entries), maxEntries)] {
		key, name, ok := parse(entry.Name())
		if !ok {
			continue
		}
		if other, is := l.names[key]; is && other != name {
			twice[key] = true
		}
		l.names[key] = name
	}
	for key := range twice {
		delete(l.names, key)
	}
	return nil
}

// absent is an error, unless something is not there or not for this user.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

func podOfLog(entry string) (uid string, n Name, ok bool) {
	parts := strings.Split(entry, "_")
	if len(parts) != 3 || !isHex(strings.ReplaceAll(parts[2], "-", ""), 32) {
		return "", n, false
	}
	n = Name{Namespace: parts[0], Pod: parts[1], UID: parts[2]}
	return n.UID, n, n.valid()
}

func containerOfLog(entry string) (id string, n Name, ok bool) {
	name, isLog := strings.CutSuffix(entry, ".log")
	i := strings.LastIndexByte(name, '-')
	if !isLog || i < 0 || !isHex(name[i+1:], 64) {
		return "", n, false
	}
	parts := strings.Split(name[:i], "_")
	if len(parts) != 3 || parts[2] == "" {
		return "", n, false
	}
	n = Name{Namespace: parts[1], Pod: parts[0], Container: parts[2]}
	return name[i+1:], n, n.valid()
}

// valid reports whether the parts are such as Kubernetes allows (RFC 1123).
func (n *Name) valid() bool {
	part := func(text, besides string, most int) bool {
		return text != "" && len(text) <= most && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-"+besides) == ""
	}
	return part(n.Namespace, "", 63) && part(n.Pod, ".", 253) && (n.Container == "" || n.Container == Sandbox || part(n.Container, "", 63))
}

// Of returns whose the group of a pod or a container is; false where that is not known,
// and for groups that are neither.
func (d *Directory) Of(group string) (n Name, ok bool) {
	g := Parse(group)
	if g.Level != OnePod && g.Level != OneContainer {
		return n, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, known := d.pods.names[g.UID]
	if g.Level == OnePod {
		pod.QoS = g.QoS
		return pod, known
	}
	n, ok = d.containers.names[g.ID]
	if !ok {
		n, ok = d.runtime(g.ID)
		ok = ok && (n.UID == "" || n.UID == g.UID)
	}
	if !ok || known && (n.Namespace != pod.Namespace || n.Pod != pod.Pod) {
		return Name{}, false
	}
	n.UID, n.QoS = g.UID, g.QoS
	return n, true
}

// runtime asks a runtime's files for a container.
func (d *Directory) runtime(id string) (Name, bool) {
	b, asked := d.bundled[id]
	if !asked {
		for _, file := range bundles() {
			if b.Name, b.ok = readBundle(d.root, strings.Replace(file, "ID", id, 1)); b.ok {
				break
			}
		}
		d.bundled[id] = b
	}
	return b.Name, b.ok
}

// readBundle reads the annotations that containerd (pkg/cri/annotations) and CRI-O
// (pkg/annotations) put into a container's configuration.
func readBundle(root fs.FS, file string) (n Name, ok bool) {
	info, err := fs.Stat(root, file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxConfig {
		return n, false
	}
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return n, false
	}
	var config struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(text, &config) != nil {
		return n, false
	}
	first := func(keys ...string) string {
		i := slices.IndexFunc(keys, func(key string) bool { return config.Annotations[key] != "" })
		if i < 0 {
			return ""
		}
		return config.Annotations[keys[i]]
	}
	n = Name{
		Namespace: first("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
		Pod:       first("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
		UID:       first("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
		Container: first("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
	}
	if first("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType") == "sandbox" {
		n.Container = Sandbox
	}
	return n, n.Container != "" && n.valid()
}

// Find returns the groups, of some, that a name means: NAMESPACE/POD, POD, or either with
// /CONTAINER behind it. What a namespace would tell apart is all returned. A pod is the
// group around its containers.
func (d *Directory) Find(name string, groups []string) (found []string) {
	add := func(group string) {
		if !slices.Contains(found, group) {
			found = append(found, group)
		}
	}
	for _, group := range groups {
		n, ok := d.Of(group)
		if !ok || n.Container == "" {
			continue
		}
		pod := path.Dir(group)
		switch name {
		case n.Namespace + "/" + n.Pod, n.Pod:
			if Parse(pod).Level != OnePod { // cgroupfs with a path meant for systemd
				pod = group
			}
			add(pod)
		case n.String(), n.Pod + "/" + n.Container:
			add(group)
		}
	}
	return found
}
