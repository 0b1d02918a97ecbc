// Command berth places workloads on a shared Linux host, protects them from noisy
// neighbours, and measures what that brings.
package main

import "berth.dev/berth/internal/cli"

func main() { cli.Main() }
