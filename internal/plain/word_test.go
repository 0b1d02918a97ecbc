package plain

import "testing"

type small uint8

func TestWords(t *testing.T) {
	t.Parallel()
	words := []string{"none", "some"}
	for i, want := range []string{"none", "some", "unknown(2)"} {
		if got := Word(words, small(i)); got != want {
			t.Errorf("%d is %q, want %q", i, got, want)
		}
		text, err := MarshalWord(words, small(i))
		if (err == nil) != (i < 2) || err == nil && string(text) != want {
			t.Errorf("%d as text: %q, %v", i, text, err)
		}
		var back small
		if err := UnmarshalWord(words, []byte(want), &back); (err == nil) != (i < 2) || err == nil && int(back) != i {
			t.Errorf("%q read: %d, %v", want, back, err)
		}
	}
	if got := Word(words, -1); got != "unknown(-1)" {
		t.Errorf("-1 is %q", got)
	}
	if _, err := MarshalWord(words, -1); err == nil {
		t.Error("-1 as text: no error")
	}
}

type colours struct{}

func (colours) Words() []string { return []string{"", "red", "blue"} }

func TestEnum(t *testing.T) {
	t.Parallel()
	const blue, none = Enum[colours](2), Enum[colours](3)
	var back Enum[colours]
	text, err := blue.MarshalText()
	if err != nil || string(text) != "blue" || back.UnmarshalText(text) != nil || back != blue || blue.String() != "blue" || !blue.Known() {
		t.Errorf("blue is %s, as text %q, %v, and read back %s", blue, text, err, back)
	}
	if _, err := none.MarshalText(); err == nil || none.Known() || back.UnmarshalText([]byte("green")) == nil {
		t.Error("an integer without a word, or an unknown word, is taken")
	}
}
