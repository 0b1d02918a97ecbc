package config

import "berth.dev/berth/watch/pods"

// runtimes are those that Container.Runtime may name.
func runtimes() []string {
	return []string{"docker", "containerd", "crio", "podman", "lxc", "nspawn"}
}

// ContainerID is what is known of a container.
type ContainerID = pods.Container
