package place

import "testing"

func TestParseMilli(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want int // -1 is an error
	}{
		{"4", 4000}, {"0", 0}, {"2.5", 2500}, {"0.001", 1}, {"1.25", 1250}, {"500m", 500}, {"1099511627775m", 1099511627775},
		{"4k", 4_000_000}, {"2e0", 2000},
		{"", -1}, {"m", -1}, {"-1", -1}, {"1.0001", -1}, {"1.-5", -1}, {"4 ", -1}, {"0.5m", -1}, {"5u", -1},
		{"99999999999999999999", -1}, {"1099511627776", -1},
	} {
		got := Milli(-1)
		if err := got.UnmarshalText([]byte(tt.text)); int(got) != tt.want || (err != nil) != (tt.want < 0) {
			t.Errorf("%q is read as %d, %v; want %d", tt.text, got, err, tt.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want int64 // -1 is an error
	}{
		{"0", 0}, {"1048576", 1 << 20}, {"512Mi", 512 << 20}, {"2G", 2e9}, {"3k", 3000}, {"1Ti", 1 << 40}, {"4194304Ti", 1 << 62}, {"1.5Gi", 3 << 29},
		{"", -1}, {"Mi", -1}, {"-1", -1}, {"100m", -1}, {"0.3Ki", -1}, {"1KiB", -1}, {"1 Mi", -1}, {"4194305Ti", -1}, {"9223372036854775808", -1},
	} {
		got := Bytes(-1)
		if err := got.UnmarshalText([]byte(tt.text)); int64(got) != tt.want || (err != nil) != (tt.want < 0) {
			t.Errorf("%q is read as %d, %v; want %d", tt.text, int64(got), err, tt.want)
		}
	}
}

// What is written is read as the same amount.
func TestTextRoundTrip(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "4", "500m", "2500m", "max"} {
		var m Milli
		if err := m.UnmarshalText([]byte(text)); err != nil || m.String() != text {
			t.Errorf("Milli %q is written as %q, %v", text, m, err)
		}
	}
	for _, text := range []string{"0", "1000", "1Ki", "1536Mi", "2Gi", "1024Ti", "max"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b.String() != text {
			t.Errorf("Bytes %q is written as %q, %v", text, b, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"4", "2.5", "500m", "512Mi", "max", "-1", "1.", "99999999999m"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var m, m2 Milli
		if m.UnmarshalText([]byte(text)) == nil {
			if err := m2.UnmarshalText([]byte(m.String())); err != nil || m2 != m {
				t.Errorf("Milli %q is %v, which is read as %v, %v", text, m, m2, err)
			}
		}
		var b, b2 Bytes
		if b.UnmarshalText([]byte(text)) == nil {
			if err := b2.UnmarshalText([]byte(b.String())); err != nil || b2 != b {
				t.Errorf("Bytes %q is %v, which is read as %v, %v", text, b, b2, err)
			}
		}
	})
}
