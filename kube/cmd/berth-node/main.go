// Command berth-node is berth for a node of Kubernetes: all verbs of berth, and those that
// need Kubernetes' libraries.
package main

func main() {}
