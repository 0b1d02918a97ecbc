package blockio

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/strictyaml"
)

// Parse reads a file of Berth, of goresctrl or CRI Resource Manager (classes at the top or
// below "blockio"; their documentation, doc/blockio.md), or a NodeSLO or strategy of
// Koordinator (blkioQOS by its QoS classes). Errors are strictyaml.Errors.
func Parse(data []byte, name string) (*Config, error) {
	if throttles(data) {
		var file struct {
			strictyaml.AnyCase
			Classes goresctrl `json:"Classes"`
		}
		if _, err := strictyaml.Decode(data, name, &file); err != nil {
			return nil, err
		}
		c := file.Classes.config()
		return c, c.Validate()
	}
	var file struct {
		strictyaml.Open
		Config
		Own     *Config   `json:"io"`
		Theirs  goresctrl `json:"Classes"`
		BlockIO *struct {
			strictyaml.Open
			strictyaml.AnyCase
			Classes goresctrl `json:"Classes"`
		} `json:"blockio"`
		strategy
		Strategy *strategy `json:"resourceQOSStrategy"`
		Cluster  *strategy `json:"clusterStrategy"`
		Spec     *struct {
			strictyaml.Open
			Strategy *strategy `json:"resourceQOSStrategy"`
		} `json:"spec"`
	}
	if _, err := strictyaml.Decode(data, name, &file); err != nil {
		return nil, err
	}
	c := &file.Config
	switch {
	case file.Own != nil:
		c = file.Own
	case file.Theirs != nil:
		c = file.Theirs.config()
	case file.BlockIO != nil:
		c = file.BlockIO.Classes.config()
	default:
		strategies := []*strategy{file.Strategy, file.Cluster, &file.strategy}
		if file.Spec != nil {
			strategies = append(strategies, file.Spec.Strategy)
		}
		for _, s := range strategies {
			if s == nil || len(s.classes()) == 0 {
				continue
			}
			var err error
			if c, err = s.config(); err != nil {
				return nil, err
			}
		}
	}
	return c, c.Validate()
}

// throttles reports whether "classes", which Berth and goresctrl both have, are goresctrl's.
func throttles(data []byte) bool {
	var file struct {
		strictyaml.Open
		Classes map[string]any `json:"classes"`
	}
	_, _ = strictyaml.Decode(data, "", &file) // the reader of all of it tells what is wrong
	for _, class := range file.Classes {
		entries, _ := class.([]any)
		for _, e := range entries {
			fields, _ := e.(map[string]any)
			for name := range fields {
				if strings.HasPrefix(strings.ToLower(name), "throttle") {
					return true
				}
			}
		}
	}
	return false
}

// goresctrl are classes in the format of goresctrl.
type goresctrl map[string][]struct {
	strictyaml.AnyCase
	Devices           []string `json:"Devices"`
	ThrottleReadBps   Rate     `json:"ThrottleReadBps"`
	ThrottleWriteBps  Rate     `json:"ThrottleWriteBps"`
	ThrottleReadIOPS  Rate     `json:"ThrottleReadIOPS"`
	ThrottleWriteIOPS Rate     `json:"ThrottleWriteIOPS"`
	Weight            int      `json:"Weight"`
}

func (g goresctrl) config() *Config {
	c := &Config{Classes: map[string]Class{}}
	for name, entries := range g {
		c.Classes[name] = Class{}
		for _, e := range entries {
			c.Classes[name] = append(c.Classes[name], Entry{
				Devices: e.Devices, Weight: e.Weight, ReadBPS: e.ThrottleReadBps, WriteBPS: e.ThrottleWriteBps,
				ReadIOPS: e.ThrottleReadIOPS, WriteIOPS: e.ThrottleWriteIOPS,
			})
		}
	}
	return c
}

// strategy is the format of Koordinator (apis/slo/v1alpha1).
type strategy struct {
	strictyaml.Open
	LSRClass    *koordinatorQOS `json:"lsrClass"`
	LSClass     *koordinatorQOS `json:"lsClass"`
	BEClass     *koordinatorQOS `json:"beClass"`
	SystemClass *koordinatorQOS `json:"systemClass"`
	CgroupRoot  *koordinatorQOS `json:"cgroupRoot"`
}

type koordinatorQOS struct {
	strictyaml.Open
	BlkIO *struct {
		Enable bool               `json:"enable"`
		Blocks []koordinatorBlock `json:"blocks"`
	} `json:"blkioQOS"`
}

type koordinatorBlock struct {
	Name string `json:"name"`
	Type string `json:"type"`
	IO   struct {
		ReadIOPS  int64 `json:"readIOPS"`
		WriteIOPS int64 `json:"writeIOPS"`
		ReadBPS   int64 `json:"readBPS"`
		WriteBPS  int64 `json:"writeBPS"`
		Weight    int   `json:"ioWeightPercent"`

		ReadLatency         int64   `json:"readLatency"` // microseconds
		WriteLatency        int64   `json:"writeLatency"`
		ReadLatencyPercent  float64 `json:"readLatencyPercent"`
		WriteLatencyPercent float64 `json:"writeLatencyPercent"`
		EnableUserModel     bool    `json:"enableUserModel"`
		ModelReadBPS        int64   `json:"modelReadBPS"`
		ModelWriteBPS       int64   `json:"modelWriteBPS"`
		ModelReadSeqIOPS    int64   `json:"modelReadSeqIOPS"`
		ModelWriteSeqIOPS   int64   `json:"modelWriteSeqIOPS"`
		ModelReadRandIOPS   int64   `json:"modelReadRandIOPS"`
		ModelWriteRandIOPS  int64   `json:"modelWriteRandIOPS"`
	} `json:"ioCfg"`
}

// negative returns an error for a number below 0, and for a latency that is more than a minute.
func (b *koordinatorBlock) negative(at string) error {
	c := &b.IO
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"readIOPS", c.ReadIOPS}, {"writeIOPS", c.WriteIOPS}, {"readBPS", c.ReadBPS}, {"writeBPS", c.WriteBPS}, {"ioWeightPercent", int64(c.Weight)},
		{"readLatency", c.ReadLatency}, {"writeLatency", c.WriteLatency},
		{"modelReadBPS", c.ModelReadBPS}, {"modelWriteBPS", c.ModelWriteBPS}, {"modelReadSeqIOPS", c.ModelReadSeqIOPS},
		{"modelWriteSeqIOPS", c.ModelWriteSeqIOPS}, {"modelReadRandIOPS", c.ModelReadRandIOPS}, {"modelWriteRandIOPS", c.ModelWriteRandIOPS},
	} {
		if f.n < 0 {
			return &strictyaml.Error{Field: at + f.name, Err: fmt.Errorf("%d is below 0; 0 is no limit", f.n)}
		}
		if most := time.Minute.Microseconds(); strings.HasSuffix(f.name, "Latency") && f.n > most {
			return &strictyaml.Error{Field: at + f.name, Err: fmt.Errorf("%d is more than %d (µs), a minute", f.n, most)}
		}
	}
	return nil
}

// koordinatorClass is one of its QoS classes, with the classes of service that it is for.
type koordinatorClass struct {
	name     string
	field    string
	services []string
	qos      *koordinatorQOS
}

// classes are those that it turns block I/O on for.
func (s *strategy) classes() []koordinatorClass {
	all := []koordinatorClass{
		{"lsr", "lsrClass", []string{"LSE", "LSR"}, s.LSRClass}, {"ls", "lsClass", []string{"LS"}, s.LSClass}, {"be", "beClass", []string{"BE"}, s.BEClass},
		{"system", "systemClass", []string{"SYSTEM"}, s.SystemClass}, {"cgroupRoot", "cgroupRoot", nil, s.CgroupRoot},
	}
	return slices.DeleteFunc(all, func(c koordinatorClass) bool { return c.qos == nil || c.qos.BlkIO == nil || !c.qos.BlkIO.Enable })
}

func (s *strategy) config() (*Config, error) {
	c := &Config{Classes: map[string]Class{}, Service: map[string]string{}}
	for _, class := range s.classes() {
		for i, b := range class.qos.BlkIO.Blocks {
			devices, block := []string{b.Name}, fmt.Sprintf("%s.blkioQOS.blocks[%d]", class.field, i)
			if err := b.negative(block + ".ioCfg."); err != nil {
				return nil, err
			}
			switch b.Type {
			case "device":
			case "volumegroup":
				devices[0] = "vg:" + b.Name
			default:
				return nil, &strictyaml.Error{Field: block + ".type", Err: fmt.Errorf("%q: no file of this host says which device that is; name the device, or the path where it is mounted", b.Type)}
			}
			io := b.IO
			if class.services == nil {
				cost := Cost{
					Devices: devices, ReadLatency: Time(io.ReadLatency * 1000), WriteLatency: Time(io.WriteLatency * 1000),
					ReadPercent: io.ReadLatencyPercent, WritePercent: io.WriteLatencyPercent,
				}
				if io.EnableUserModel {
					cost.Model = &Model{
						Rate(io.ModelReadBPS), Rate(io.ModelReadSeqIOPS), Rate(io.ModelReadRandIOPS),
						Rate(io.ModelWriteBPS), Rate(io.ModelWriteSeqIOPS), Rate(io.ModelWriteRandIOPS),
					}
				}
				c.Cost = append(c.Cost, cost)
				continue
			}
			e := Entry{Devices: devices, Weight: io.Weight, ReadBPS: Rate(io.ReadBPS), WriteBPS: Rate(io.WriteBPS), ReadIOPS: Rate(io.ReadIOPS), WriteIOPS: Rate(io.WriteIOPS)}
			if e.Weight == 0 && e.ReadBPS == 0 && e.WriteBPS == 0 && e.ReadIOPS == 0 && e.WriteIOPS == 0 {
				continue // 0 turns a limit off
			}
			c.Classes[class.name] = append(c.Classes[class.name], e)
			for _, service := range class.services {
				c.Service[service] = class.name
			}
		}
	}
	return c, nil
}
