// Command berth gives every workload on a shared Linux host its own place,
// keeps noisy neighbours clear of it, and measures what that bought.
package main

import "berth.dev/berth/internal/cli"

func main() { cli.Main() }
