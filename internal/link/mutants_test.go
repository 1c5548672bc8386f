package link

import (
	"testing"

	"github.com/ringnet/ringnet/internal/testing/mutants"
)

// edits are those of this package, or of those whose paths they name, and the tests that fail then. Each leaves out a step: most of those
// by which the next completion is noticed; the last of those that nothing but chance would miss.
var edits = [][5]string{
	{"the queue is not armed", "wait.go", "l.ep.Arm(); err", "error(nil); err", ""},
	{"no poll after Arm", "wait.go", "	l.pollCompletions() // what has completed before Arm gives no event\n", "", ""},
	{"no check after that poll", "wait.go", "case l.satisfied(s, which, d) || s != nil && l.needsEngine():", "case false:", ""},
	{"time passes between that check and the sleep", "wait.go", "	if !l.await(d) {\n", "	for range 8 {\n		l.letOthersRun()\n	}\n	if !l.await(d) {\n", ""},
	{"a call while the holder polls is forgotten", "wait.go", "	case w.called:\n", "	case false:\n", "TestExplore$"},
	{"nobody knows where the holder sleeps", "wait.go", "	w.in, w.roused = ep, false\n", "", ""},
	{"no look after the sleep", "wait.go", "		before := l.m.Activity()\n		l.pollCompletions()\n", "		before := l.m.Activity()\n", ""},
	{"a sleeping holder is not woken when it is ready", "wait.go", "&& ready[i](s):\n			w.rouse()", "&& ready[i](s):", ""},
	{"a parked call is not woken", "wait.go", "			c.signal <- struct{}{}\n", "", ""},
	{"a call that is woken stays in the count", "wait.go", "			c.parked = false\n			w.parked--\n", "			c.parked = false\n", ""},
	{"a call that is not woken stays in the count", "wait.go", "	c.parked = false\n	l.watch.parked--\n}", "	c.parked = false\n}", ""},
	{"a call that is woken after its deadline", "wait.go", "	l.lock()\n	if !c.parked {\n		<-c.signal\n		return\n	}\n", "	for range 8 {\n		runtime.Gosched()\n	}\n	l.lock()\n	if !c.parked {\n		return\n	}\n", ""},
	{"time passes between a check and parking", "wait.go", "			s.park(c, d)", "			l.letOthersRun()\n			s.park(c, d)", ""},
	{"a call keeps the watch of a link without a queue pair", "wait.go", "!l.satisfied(s, which, d) && !l.needsEngine()", "!l.satisfied(s, which, d)", ""},
	{"the deadline wakes nobody", "wait.go", "!d.Notify(ep)", "!d.Expired()", ""},
	{"the deadline has passed before the sleep", "wait.go", "	var event error\n	if d == nil || !d.Notify(ep) {", "	var event error\n	for range 8 {\n		runtime.Gosched()\n	}\n	if d == nil || !d.Notify(ep) || true {", ""},
	{"the link needs the engine when the holder leaves", "wait.go", " || l.needsEngine() || l.limits", " || l.limits", ""},
	{"no timer when the holder leaves", "unlock.go", "	case w.holder == nil && !w.pending:\n		l.watchLater()\n", "", ""},
	{"the timer is set though it is", "unlock.go", "	case w.holder == nil && !w.pending:", "	case w.holder == nil:", ""},
	{"the timer is not started", "wait.go", "	w.timer.Reset(watchWithin)\n", "", ""},
	{"the timer takes old polls for new ones", "wait.go", "	w.seen = w.polls\n", "", ""},
	{"the timer gives the watch to nobody", "wait.go", "			w.engineFirst = engineFirstFor\n		}\n		w.wanted = true", "			w.engineFirst = engineFirstFor\n		}", ""},
	{"the engine is not told that it has the watch", "wait.go", "	case w.given <- struct{}{}:\n", "", ""},
	{"the engine waits though another has the watch", "engine.go", "	for w.holder != &engine {\n		l.unlock()\n		<-w.given\n", "	for w.holder == nil {\n		l.unlock()\n		<-w.given\n		l.lock()\n		l.letOthersRun()\n		l.unlock()\n", ""},
	{"who has not got the watch closes what is lost", "move.go", "	l.path.owner.none = false\n", "	l.path.owner.none = false\n	l.closeLost()\n", ""},
	{"the holder is not woken when it is called", "unlock.go", "(w.called || l.relieved())", "l.relieved()", ""},
	{"the holder is not woken when it is relieved", "unlock.go", "(w.called || l.relieved())", "w.called", ""},
	{"a holder that sleeps again counts as woken", "wait.go", "w.in, w.roused = ep, false", "w.in = ep", ""},
	{"nobody gets the watch that is wanted", "unlock.go", "case w.wanted || w.holder == nil && l.mustWatch():", "case w.holder == nil && l.mustWatch():", ""},
	{"nobody gets the watch though somebody must", "unlock.go", "case w.wanted || w.holder == nil && l.mustWatch():", "case w.wanted:", ""},
	{"nothing is carried out", "unlock.go", "	l.carryOut()\n	ep, due", "	ep, due", ""},
	{"the calls that are ready are not woken", "unlock.go", "			l.wakeTouched()\n", "", ""},
	{"the link does not go on", "unlock.go", "!l.m.Advance() && len(", "len(", ""},
	{"the engine is not needed", "wait.go", "return l.m.Stage() != machine.Up || len(l.path.lost) > 0", "return false", ""},
	{"calls keep the watch of a link that has moved", "wait.go", "return l.m.Stage() != machine.Up || len(l.path.lost) > 0", "return l.m.Stage() != machine.Up", "TestAHolderThatWakesBehindAMove"},
	{"the queue pair before is taken for the present one", "wait.go", "if moves != l.m.Moves() {", "if moves != l.m.Moves() && false {", "TestAHolderThatWakesBehindAMove"},
	{"the engine sleeps on a link of no use", "wait.go", "return l.m.Unneeded() || len(l.path.lost) > 0", "return len(l.path.lost) > 0", ""},
	{"the engine sleeps before it closes what is lost", "wait.go", "return l.m.Unneeded() || len(l.path.lost) > 0", "return l.m.Unneeded()", "TestTheEngineClosesWhatIsLostBeforeItSleeps"},
	{"a call that waits again stays at work", "wait.go", "	s.waitsAgain()\n	for", "	for", ""},
	{"what waits to be sent is left to nobody", "../machine/send.go", "l.send.withData.Len() > 0 || l.send.withRecords.Len() > 0 || len(l.send.awaitingEnds)", "len(l.send.awaitingEnds)", ""},
	{"an end of a stream is not signaled", "../machine/control.go", "			q.signal = true // for a Close\n", "", "TestCloseNoticesThatAResetBehindFINHasArrived"},
	{"staging memory lies in bytes that are not signaled", "../machine/staging.go", "		l.alive.due = l.alive.due || a.ring.Len() > 0\n", "", "TestStagingMemoryGrowsForBulkAndShrinks"},
	{"a buffer waits for what was staged before it", "../machine/send.go", "	q.signal = q.signal || p.memory != nil && s.holdsBuffer()\n", "", "TestABufferComesBackWhenNothingElseIsSent"},
	{"a Write overtakes what waits of its stream", "../machine/send.go", "MaxBatch-controlBatch && s.ledger.Pending() == 0 &&", "MaxBatch-controlBatch &&", "TestAConversationDoesNotOvertakeItself"},
	{"a stream that is closed stays at work", "close.go", "	s.waitsAgain()\n", "", ""},
	{"a RESET behind FIN has arrived", "../machine/control.go", "s.end == 0 || s.end.completed(&q.slots)", "s.end == 0", "TestCloseNoticesThatAResetBehindFINHasArrived"},
	{"a Write takes room in a ring that has shrunk", "../machine/staging.go", "err != nil || s.ledger.Space() < n", "err != nil", "TestARingThatShrinksWhileAWriteCopies"},
	{"a buffer is freed that another device is given", "buffer.go", "if !l.path.owner.moving {", "if true {", "TestNobodyWaitsForADeviceThatRegisters"},
	{"a dial that has given up gets a ring", "register.go", "		left = true\n", "		_ = left\n", "TestADialThatGivesUpLeavesNoMemory"},
	{"a slab that nobody wants is not looked at", "register.go", "		l.m.ShrinkLater() // it may be of no use any more\n", "", "TestADialThatGivesUpLeavesNoMemory"},
	{"a ring that has shrunk leaves no other to shrink to", "../../ring/arena.go", "	if a.spare.size < a.spareSize {\n		a.spare, _ = a.find(a.spareSize)\n	}\n", "", "TestIdleRingsShrinkUntilAllMemoryIsOfSmallOnes"},
	{"the alarm of the queue pair before stays", "../machine/life.go", "		l.alarms.clear(drainAlarm)\n", "", "TestTimersThatFireLate"},
	{"the timer is not set to the first alarm", "unlock.go", "	if l.m.AlarmsChanged() {\n		l.setTimer()\n	}\n", "", "TestAPeerThatDoesNotCloseKeepsNoStream"},
	{"what a Close has waited counts behind a break", "../machine/resume.go", "	l.streams.timedOut = timedOutClose{} // nothing could arrive meanwhile\n", "", "TestTheTimeThatACloseHasWaited"},
	{"what had arrived keeps the staging memory", "../machine/resume.go", "	l.freeStaging()                      // of", "	// of", "TestStagingMemoryIsFreeOfWhatHadArrived"},
	{"the Close of what is lost times out", "../machine/close.go", "case err == nil && s.link.stage.Final():", "case false:", "TestACloseOfWhatIsLostDoesNotTimeOut"},
	{"a link without a path is forgotten", "pool.go", "if !entry.link.lacksPath.Load() {", "if true {", "TestADialThatGivesUpOnALinkWithoutAPath"},
	{"a queue pair that fails during a post stays", "unlock.go", "		if l.m.TakeDisconnect() {\n			l.m.Disconnected(l.ep.Disconnect())\n		}\n", "", ""},
	{"a SEND is not counted", "../machine/send.go", "		l.stats.ControlSent++\n", "", "TestALinkCountsWhatItPosts"},
}

// TestMutants sees that each of the mutants fails its tests, TestExploreWaiting over sim if none
// is named: make mutants.
func TestMutants(t *testing.T) {
	mutants.Run(t, mutants.Of(edits), "TestExploreWaiting/sim", "RINGNET_EXPLORE_WORLDS=2000", "GODEBUG=asyncpreemptoff=1") // so that seeds draw the same
}
