package link

// run is the goroutine of a link, its engine. It has the watch while no call has it, takes note
// of what happens to the queue pair, and takes the link down when it has ended and its streams
// and buffers are closed.
func (l *Link) run() {
	l.lock()
	for !l.m.Unneeded() {
		l.turn()
	}
	l.unlock()
	l.tearDown()
}

// turn waits until the engine has the watch, and then for one event of the endpoint. It releases mu meanwhile.
func (l *Link) turn() {
	w := &l.watch
	for w.holder != &engine {
		l.unlock()
		<-w.given
		l.lock()
	}
	l.closeLost()
	w.served = false
	l.sleep(nil, engineCall, nil)
	l.carryOut()
	if w.served && l.limits.Spin > 0 && !l.mustWatch() {
		l.giveUpWatch() // the calls that have been woken take the watch
	}
}

// closeLost closes the endpoints that the link has had before, in goroutines, for it takes
// a device whose cable is out seconds. Only the engine calls it, while it has the watch, so that
// nobody waits on any of them.
func (l *Link) closeLost() {
	for _, ep := range l.path.lost {
		l.path.work.Go(func() { _ = ep.Close() }) // no call is left to return the error
	}
	l.path.lost = nil
}

// tearDown frees everything. Streams are closed: none of their calls touches the
// endpoint any more, but for Wake.
func (l *Link) tearDown() {
	l.lock()
	l.m.Close()
	l.watch.timer.Stop()
	l.timer.Stop()
	l.unlock()
	l.endSearch()
	l.lock()
	l.closeLost()
	l.unlock()
	l.path.work.Wait()
	// The memory is gone either way, and no call is left to return the error.
	_ = l.ep.Close()
	l.lock()
	defer l.unlock()
	l.memory.account.Release(l.memory.account.Bytes())
	l.delist() // and no sooner: a dial that lacks memory meanwhile finds that some is about to be free
}
