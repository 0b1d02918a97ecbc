// Package network tells what control groups send and receive, how their TCP connections
// fare, and how full the links of the host are:
//
//   - Traffic counts bytes and packets of all groups, by a BPF program at every packet;
//   - TCP reads round-trip times and retransmits of a group, by inet_diag (sock_diag(7)),
//     which costs nothing per packet;
//   - Links reads the host's network interfaces (sysfs-class-net-statistics, rtnetlink).
//
// A socket belongs to the v2 group in which its process was when it made it, and a
// connection to that of the socket that listened for it. Judging the figures is left to
// others.
package network

import (
	"os"
	"path/filepath"
	"strconv"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

const (
	thread = "thread-self" // the process that is this thread
	// Namespaces are told apart by the inode of this file of a process.
	namespaceFile = "ns/net"
)

// namespaceOf is the network namespace of a process, "" if it is not to be had.
func namespaceOf(proc, pid string) string {
	link, err := os.Readlink(filepath.Join(proc, pid, namespaceFile))
	if err != nil {
		return ""
	}
	return link
}

// processes are those of a group, some at most.
func processes(dir string, most int) []string {
	pids, _ := kernel.ReadProcs(os.DirFS(dir), ".") // of one that is gone, or threaded, none
	var names []string
	for _, pid := range pids[:min(len(pids), most)] {
		names = append(names, strconv.Itoa(pid))
	}
	return names
}

func unsupported(feature, reason, remedy string) error {
	return &kernel.NotSupportedError{Feature: feature, Reason: reason, Remedy: remedy}
}

func sample(now watch.Time, of watch.Subject, q watch.Quantity, v float64) watch.Sample {
	return watch.Sample{Time: now, Subject: of, Quantity: q, Value: v}
}

func link(index int) watch.Part { return watch.Part{Kind: watch.Link, ID: index} }
