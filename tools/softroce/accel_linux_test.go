package main

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// standInForQEMU is this program when it is started in the place of QEMU. It is the guest, too, whose command exits
// with 7; but under KVM it has the manner of that name. It notes what has happened.
func standInForQEMU(manner string, args []string) int {
	name := args[slices.Index(args, "-accel")+1]
	name, _, _ = strings.Cut(name, ",")
	note := func(what string) {
		f, _ := os.OpenFile(os.Getenv("SOFTROCE_TEST_NOTES"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
		fmt.Fprintln(f, name, what)
		f.Close()
	}
	note("on")
	if manner == "never starts" || manner == "does not start" && name == accelKVM {
		fmt.Println("failed to initialize kvm: Invalid argument")
		return 1
	}
	socket := func(id string) *os.File {
		for _, arg := range args {
			var fd uintptr
			if _, err := fmt.Sscanf(arg, "socket,id="+id+",fd=%d", &fd); err == nil {
				return os.NewFile(fd, id)
			}
		}
		return nil
	}
	if qmp := socket("qmp"); qmp != nil {
		go func() {
			for requests := json.NewDecoder(qmp); ; {
				var request any
				if requests.Decode(&request) != nil {
					return
				}
				fmt.Fprintln(qmp, `{"return": {}}`)
			}
		}()
	}
	fmt.Println("Linux version 6.1")
	agent := socket(portAgent)
	from, to := gob.NewDecoder(agent), gob.NewEncoder(agent)
	var config, start, end message
	if err := from.Decode(&config); err != nil {
		return 1
	}
	if name == accelKVM && (manner == "hangs" || manner == "node 1 hangs" && config.Config.Node == 1) {
		for {
			time.Sleep(time.Hour)
		}
	}
	to.Encode(message{Ready: true})
	if from.Decode(&start) != nil {
		return 1
	}
	note("start")
	if manner == "dies later" {
		return 1
	}
	to.Encode(message{Ended: true, Status: 7})
	from.Decode(&end)
	return 0
}

// withKVM has the tool take the stand-in for QEMU, on a host with KVM, and returns the folder of its cache.
func withKVM(t *testing.T, manner string, silence time.Duration) (cache string) {
	t.Helper()
	runtime.LockOSThread() // QEMU ends with the thread that has started it
	cache = t.TempDir()
	device, bound := kvmDevice, kvmSilence
	t.Cleanup(func() { kvmDevice, kvmSilence = device, bound })
	kvmDevice, kvmSilence = writeFile(t, cache, "kvm", nil), silence
	t.Setenv("SOFTROCE_TEST_QEMU", manner)
	t.Setenv("SOFTROCE_TEST_NOTES", filepath.Join(cache, "notes"))
	return cache
}

// runStandIn runs a command on nodes of the tool with that cache and returns what the stand-ins have noted.
func runStandIn(t *testing.T, cache, accel string, nodes int) (notes string, err error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "notes")
	os.Remove(path)
	opts := options{nodes: nodes, cables: nodes, accel: accel, commands: slices.Repeat([][]string{{"true"}}, nodes)}
	status, err := runGuests(t.Context(), opts, &image{machine{qemu: exe, console: "ttyS0"}, filepath.Join(cache, "image")})
	if err == nil && status != 7 {
		t.Errorf("exit status %d, want 7", status)
	}
	text, _ := os.ReadFile(path)
	return strings.ReplaceAll(string(text), "\n", "|"), err
}

func TestGuestsRunUnderKVMWhereItWorks(t *testing.T) {
	const (
		kvm1, tcg1 = "kvm on|kvm start|", "tcg on|tcg start|"
		kvm2, tcg2 = "kvm on|kvm on|kvm start|kvm start|", "tcg on|tcg on|tcg start|tcg start|"
		soon       = 100 * time.Millisecond
	)
	for _, tt := range []struct {
		name, manner string
		silence      time.Duration
		nodes        int
		want, again  string // what is noted of this run in the end, and of the next
	}{
		{"it works", "works", hang, 1, kvm1, kvm1},
		{"it hangs", "hangs", soon, 1, tcg1, tcg1},
		{"QEMU does not start with it", "does not start", hang, 1, "kvm on|" + tcg1, tcg1},
		{"it works for two nodes", "works", hang, 2, kvm2, kvm2},
		{"it hangs in one of two nodes", "node 1 hangs", soon, 2, tcg2, tcg2},
		{"QEMU does not start two nodes with it", "does not start", hang, 2, "kvm on|" + tcg2, tcg2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cache := withKVM(t, tt.manner, tt.silence)
			got, err := runStandIn(t, cache, "", tt.nodes)
			if !strings.HasSuffix(got, tt.want) || err != nil || strings.Contains(got, "kvm start") != strings.Contains(tt.want, "kvm start") {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
			if got, err := runStandIn(t, cache, "", tt.nodes); got != tt.again || err != nil {
				t.Errorf("then %q, %v, want %q", got, err, tt.again)
			}
		})
	}
}

func TestCommandIsNotRunTwiceWhenAGuestDies(t *testing.T) {
	cache := withKVM(t, "dies later", hang)
	if got, err := runStandIn(t, cache, "", 1); got != "kvm on|kvm start|" || err == nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAcceleratorThatIsNamedIsTaken(t *testing.T) {
	cache := withKVM(t, "does not start", hang)
	got, err := runStandIn(t, cache, accelKVM, 1)
	if got != "kvm on|" || err == nil || !strings.Contains(err.Error(), "failed to initialize kvm") {
		t.Errorf("kvm: %q, %v", got, err)
	}
	if got, err := runStandIn(t, cache, accelTCG, 1); got != "tcg on|tcg start|" || err != nil {
		t.Errorf("tcg: %q, %v", got, err)
	}
	if got := chooseAccel("", cache); got.name != accelKVM {
		t.Error("what was named is remembered")
	}
}

func TestAcceleratorWithoutAWord(t *testing.T) {
	cache := withKVM(t, "", hang)
	if got := chooseAccel("", cache); got.name != accelKVM || !got.orTCG {
		t.Errorf("%+v", got)
	}
	memo := chooseAccel("", cache).memo
	for _, tt := range []struct{ name, memo, device, want string }{
		{"no device", "", filepath.Join(cache, "nothing"), accelTCG},
		{"a device that does not open", "", cache, accelTCG},
		{"without success on this boot of the host", hostBoot(), kvmDevice, accelTCG},
		{"without success on another", "2f9a6b1c-0000-4000-8000-000000000000", kvmDevice, accelKVM},
	} {
		kvmDevice = tt.device
		writeFile(t, cache, filepath.Base(memo), []byte(tt.memo))
		if got := chooseAccel("", cache); got.name != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got.name, tt.want)
		}
	}
}

func TestMachineThatFailsUnderTCGTooIsNotRemembered(t *testing.T) {
	cache := withKVM(t, "never starts", hang)
	if got, err := runStandIn(t, cache, "", 1); got != "kvm on|tcg on|" || err == nil {
		t.Errorf("%q, %v", got, err)
	}
	if got := chooseAccel("", cache); got.name != accelKVM {
		t.Error("it is remembered")
	}
}

func TestConsoleThatGrowsIsNotSilent(t *testing.T) {
	start := time.Now()
	c := console{since: start}
	for _, tt := range []struct {
		at   time.Duration
		size int64
		want time.Duration
	}{
		{kvmSilence - 1, 0, kvmSilence - 1},
		{kvmSilence, 1, 0},
		{2*kvmSilence - 1, 1, kvmSilence - 1},
		{2*kvmSilence + 1, 2, 0},
		{20 * kvmSilence, 3, 0},
		{21 * kvmSilence, 3, kvmSilence},
	} {
		if got := c.silence(tt.size, start.Add(tt.at)); got != tt.want {
			t.Errorf("at %v, with %d bytes: %v, want %v", tt.at, tt.size, got, tt.want)
		}
	}
}

func TestReasonOfEmulationIsOneLine(t *testing.T) {
	for console, want := range map[string]string{"": "died", "a\nno kvm: b\n": "died: no kvm: b"} {
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		log.WriteString(console)
		if got := briefly((&vm{log: log}).explain(errors.New("died"))); got != want {
			t.Errorf("%q: %q, want %q", console, got, want)
		}
	}
}

func TestArgumentsOfAccelerators(t *testing.T) {
	image := &image{machine{qemu: "qemu", console: "ttyS0", args: []string{"-machine", "virt"}}, "/image"}
	for _, tt := range []struct{ accel, begin, kernel string }{
		{accelKVM, "-accel kvm -cpu host -m ", " console=ttyS0 panic=-1 "},
		{accelTCG, "-accel tcg,thread=multi -cpu max -m ", " console=ttyS0 quiet panic=-1 "},
	} {
		got := strings.Join(arguments(image, accel{name: tt.accel}, "/exe", ""), " ")
		if !strings.HasPrefix(got, tt.begin) || !strings.Contains(got, tt.kernel) || !strings.HasSuffix(got, " -machine virt") {
			t.Errorf("%s: %s", tt.accel, got)
		}
	}
}
