package load

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// servePacer speaks the generator's protocol and keeps time as most load
// generators do: one goroutine sleeps until a request is due and hands it to a
// free worker. Seen and Sent are the instant at which the worker has it. It is
// here to be compared with.
func servePacer(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Scan()
	var config Config
	if err := json.Unmarshal(lines.Bytes(), &config); err != nil {
		return err
	}
	p := pacer{config: config, clock: newClock(), due: make(chan *Result, 1<<20)}
	ended := make(chan error, config.Connections)
	for range config.Connections {
		conn, err := net.Dial("tcp", config.Addr)
		if err != nil {
			return err
		}
		go func() { ended <- p.work(conn) }()
	}
	fmt.Fprintln(out, `{"ready":true}`)
	lines.Scan()
	var origin struct{ Start int64 }
	if err := json.Unmarshal(lines.Bytes(), &origin); err != nil {
		return err
	}

	start := origin.Start + int64(config.Settle)
	cpu := processTime()
	dispatcher := p.pace(origin.Start)
	for range config.Connections {
		if err := <-ended; err != nil {
			return err
		}
	}
	report, err := summarize(nil, dispatcher[p.first(dispatcher, start):], span{start, start + int64(config.Window), p.clock.now()})
	if err != nil {
		return err
	}
	report.CPUSeconds = float64(processTime()-cpu) / 1e9
	return json.NewEncoder(out).Encode(report)
}

type pacer struct {
	config Config
	clock  clock
	due    chan *Result
}

// pace sends each request to the workers when it is due.
func (p *pacer) pace(origin int64) []Result {
	offsets := Schedule(p.config.Rate, p.config.Seed, p.config.Settle+p.config.Window)
	results := make([]Result, len(offsets))
	for i, offset := range offsets {
		results[i].Due = origin + offset
		time.Sleep(time.Duration(results[i].Due - p.clock.now()))
		p.due <- &results[i]
	}
	close(p.due)
	return results
}

// work is one connection's worker.
func (p *pacer) work(conn net.Conn) error {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for r := range p.due {
		r.Seen = p.clock.now()
		r.Sent = r.Seen
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", p.config.Path, p.config.Addr); err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		r.Done = p.clock.now()
	}
	return nil
}

// first is the index of the first request due at start or later.
func (p *pacer) first(results []Result, start int64) int {
	for i := range results {
		if results[i].Due >= start {
			return i
		}
	}
	return len(results)
}
