package credit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLinkKeepsToItsWindows(t *testing.T) {
	l := NewLink(8, 4)
	for range 4 {
		require.True(t, l.MaySendData())
		l.SendData()
	}
	require.False(t, l.MaySendData())
	require.PanicsWithValue(t, "credit: data message 5 of 4", l.SendData)
	for range RecordWindow {
		require.True(t, l.MaySendRecords())
		require.Zero(t, l.SendRecords())
	}
	require.False(t, l.MaySendRecords())
	require.Panics(t, func() { l.SendRecords() })

	require.NoError(t, l.ReceiveCredit(Totals{Data: 1}))
	require.True(t, l.MaySendData())
	require.False(t, l.MaySendRecords())
	require.NoError(t, l.ReceiveRecords(Totals{Data: 1, Records: 1}))
	require.True(t, l.MaySendRecords())
}

func TestLinkCreditIsDueAtAQuarterOfTheDataOrForRecords(t *testing.T) {
	l := NewLink(8, 4)
	require.NoError(t, l.ReceiveData())
	require.False(t, l.CreditDue())
	require.PanicsWithValue(t, "credit: link credit that is not due", func() { l.SendCredit() })
	require.NoError(t, l.ReceiveData())
	require.True(t, l.CreditDue())
	require.Equal(t, Totals{Data: 2}, l.SendCredit())
	require.False(t, l.CreditDue())

	for range RecordCredit {
		require.False(t, l.CreditDue())
		require.NoError(t, l.ReceiveRecords(Totals{}))
	}
	require.True(t, l.CreditDue())
	require.Equal(t, Totals{Data: 2, Records: RecordCredit}, l.SendRecords(), "a record SEND acknowledges as well")
	require.False(t, l.CreditDue())
}

func TestLinkBelievesNothingImpossible(t *testing.T) {
	l := NewLink(4, 8)
	for range 3 {
		l.SendData()
	}
	l.SendRecords()
	require.NoError(t, l.ReceiveRecords(Totals{Data: 1}))
	for _, c := range []struct {
		acked Totals
		want  string
	}{
		{Totals{Data: 0}, "runs backwards"},
		{Totals{Data: 4}, "when {Data:3 Records:1} were sent"},
		{Totals{Data: 1, Records: 2}, "when {Data:3 Records:1} were sent"},
	} {
		before := l
		assert.ErrorContains(t, l.ReceiveCredit(c.acked), c.want)
		assert.ErrorContains(t, l.ReceiveRecords(c.acked), c.want)
		assert.Equal(t, before, l)
	}
	require.NoError(t, l.ReceiveCredit(Totals{Data: 3}), "a quarter of the eight")
	assert.EqualError(t, l.ReceiveCredit(Totals{Data: 3, Records: 1}), "link credit for 0 data messages and 1 record SENDs")

	for range 4 {
		require.NoError(t, l.ReceiveData())
	}
	assert.EqualError(t, l.ReceiveData(), "data message 5 when 4 were granted")
	for range RecordWindow - 1 {
		require.NoError(t, l.ReceiveRecords(Totals{Data: 3}))
	}
	assert.EqualError(t, l.ReceiveRecords(Totals{Data: 3}), "record SEND 9 when 8 were granted")
}
