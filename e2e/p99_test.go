package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/e2e/idletable"
	"berth.dev/berth/internal/vmtest"
)

// P99Env asks for the measurement of what cpu.idle leaves: "2" is so many schedules.
const P99Env = "BERTH_TEST_E2E_P99"

// TestIdleByKernel measures in virtual time what cpu.idle leaves, by kernel, and prints the
// rows and their table; with -update it stores the rows, in place of those of the same kernel and
// CPUs. One guest runs at a time.
func TestIdleByKernel(t *testing.T) {
	text := os.Getenv(P99Env)
	if text == "" {
		t.Skipf("it takes half an hour, and runs where %s is set: make e2e-p99", P99Env)
	}
	seeds, err := strconv.Atoi(text)
	if err != nil || seeds < 1 {
		t.Fatalf("%s=%s: want a number of schedules", P99Env, text)
	}
	kit := openKit(t)
	programs := build(t, "e2e/guest")
	var rows []idletable.Row
	for _, m := range []vmtest.Machine{
		{Name: "two", Cores: 2, VirtualTime: true, Instruction: 2},
		{Name: "four", Cores: 4, VirtualTime: true, Instruction: 1},
	} {
		for _, kernel := range kit.Kernels {
			t.Run("kernel="+kernel.Name+"/cpus="+strconv.Itoa(m.Cores), func(t *testing.T) {
				for _, ask := range p99Asks(kernel.Name, m.Cores, seeds) {
					rows = append(rows, measureP99(t, kit, m, programs.job(kernel, m), ask)...)
				}
			})
		}
	}
	if err := idletable.Check(rows); err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", idletable.Table(rows))
	if *update && !t.Failed() {
		store(t, "../docs/measurements/results/idle-by-kernel.csv", rows)
	}
}

func store(t *testing.T, path string, rows []idletable.Row) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := idletable.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	csv := idletable.Header + "\n"
	for _, r := range idletable.Replace(stored, rows) {
		csv += r.CSV() + "\n"
	}
	if err := os.WriteFile(path, []byte(csv), 0o644); err != nil {
		t.Error(err)
	}
}

// p99Asks are what a guest is asked, each of it anew. What else may help is measured on the kernel
// on which cpu.idle leaves much.
func p99Asks(kernel string, cpus, seeds int) []idletable.Ask {
	length := 3 * time.Second / time.Duration(cpus)
	asks := []idletable.Ask{{Seeds: seeds, Workers: []int{2, 8, 16}, Cases: []string{idletable.Alone, idletable.Idle}, Length: length}}
	if kernel == thorough {
		asks[0].Workers = []int{2, 16}
		asks = append(asks, idletable.Ask{
			Seeds: seeds, Workers: []int{8}, Length: length,
			Cases: []string{idletable.Alone, idletable.Idle, idletable.Capped, idletable.OffOne, idletable.Spread},
		})
	}
	return asks
}

// measureP99 boots a guest and returns the rows that it measures.
func measureP99(t *testing.T, kit *vmtest.Kit, m vmtest.Machine, job vmtest.Job, ask idletable.Ask) []idletable.Row {
	t.Helper()
	text, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	job.Args = []string{"/bin/guest.test", "-test.run=^TestIdleByKernel$"}
	job.Env = append(job.Env, idletable.Env+"="+string(text))
	job.Output, job.CPU, job.Timeout = &output, 20*time.Minute, 2*time.Hour
	result, err := kit.Run(t.Context(), m, job)
	if err != nil {
		t.Fatalf("%v\n%s", err, &output)
	}
	var csv strings.Builder
	for line := range strings.Lines(output.String()) {
		if row, ok := strings.CutPrefix(line, idletable.Mark); ok {
			csv.WriteString(row)
		}
	}
	t.Logf("%.0f s, %.0f s of CPU\n%s", result.Elapsed.Seconds(), result.CPU.Seconds(), &csv)
	rows, err := idletable.Parse(csv.String())
	if want := ask.Seeds * len(ask.Workers) * len(ask.Cases); err != nil || result.Exit != 0 || len(rows) != want {
		t.Errorf("exit status %d, %d rows of %d, %v\n%s", result.Exit, len(rows), want, err, &output)
	}
	return rows
}

// TestGuardOnManyCPUs has a guard in a guest with virtual time help a tenant that has a thread for each of its
// CPUs, of which there are four or eight. With -update it stores what the guard's short windows read.
func TestGuardOnManyCPUs(t *testing.T) {
	if os.Getenv(P99Env) == "" {
		t.Skipf("it takes minutes, and runs where %s is set: make e2e-p99", P99Env)
	}
	kit := openKit(t)
	kernel, ok := kit.Kernel(thorough)
	if !ok {
		t.Fatalf("the kit has no kernel %s", thorough)
	}
	programs, sum := build(t, "e2e/guest"), newSummary(time.Now())
	for _, cpus := range []int{4, 8} {
		t.Run("cpus="+strconv.Itoa(cpus), func(t *testing.T) {
			m := vmtest.Machine{Name: "guarded" + strconv.Itoa(cpus), Cores: cpus + 2, VirtualTime: true, Instruction: 8 / cpus}
			job := programs.job(kernel, m)
			job.Args = []string{"/bin/guest.test", "-test.v=test2json", "-test.run=^TestGuardOnManyCPUs$"}
			job.CPU, job.Timeout = 20*time.Minute, 2*time.Hour
			recorded := runGuest(t, kit, m, job, sum)
			if *update && recorded != "" {
				zip, err := base64.StdEncoding.DecodeString(recorded)
				if err == nil {
					err = os.WriteFile("../guard/detect/testdata/cpus-"+strconv.Itoa(cpus)+".jsonl.gz", zip, 0o644)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
