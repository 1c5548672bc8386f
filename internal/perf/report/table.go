package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table has rows of columns. The first row is the head.
type Table [][]string

// Row adds a row.
func (t *Table) Row(columns ...string) { *t = append(*t, columns) }

// Text writes the table in aligned columns.
func (t Table) Text(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// Markdown writes a table that has more than a head.
func (t Table) Markdown(out io.Writer) {
	if len(t) < 2 {
		return
	}
	fmt.Fprintln(out)
	for i, row := range t {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", `\|`)
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(out, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
}

// Column is what a table says of each result.
type Column struct {
	Head  string
	Value func(*Result) string
}

// NewTable has a row for each result. Columns that say nothing of any are left out.
func NewTable(results []*Result, columns []Column) Table {
	t := make(Table, 1+len(results))
	for _, c := range columns {
		column, says := []string{c.Head}, false
		for _, x := range results {
			value := c.Value(x)
			column, says = append(column, value), says || strings.Trim(value, "0 B/"+Unknown) != ""
		}
		for i := range t {
			if says {
				t[i] = append(t[i], column[i])
			}
		}
	}
	return t
}

// Side puts the peers side by side: a row for each cell without its peer, and a column for each
// peer that has results. More columns may follow, made of a row's results by their peers.
func (r *Report) Side(title string, name func(Cell) string, value func(*Result) string, more ...SideColumn) Table {
	head, keys := []string{title}, []string{}
	for _, p := range r.Peers {
		if slices.ContainsFunc(r.Results, func(x *Result) bool { return x.Peer == p.Key && x.Median.Rounds > 0 }) {
			head, keys = append(head, p.Name), append(keys, p.Key)
		}
	}
	for _, c := range more {
		head = append(head, c.Head)
	}
	t, done := Table{head}, make(map[Cell]bool)
	for _, x := range r.Results {
		c := x.Cell
		if c.Peer = ""; done[c] {
			continue
		}
		done[c] = true
		row, measured := []string{name(c)}, make(map[string]*Result)
		for _, key := range keys {
			c.Peer = key
			text := Unknown
			if x := r.Find(c); x != nil && x.Median.Rounds > 0 {
				measured[key], text = x, value(x)
			}
			row = append(row, text)
		}
		for _, m := range more {
			row = append(row, m.Value(measured))
		}
		t.Row(row...)
	}
	return t
}

// SideColumn is a column that follows those of peers.
type SideColumn struct {
	Head  string
	Value func(measured map[string]*Result) string
}
