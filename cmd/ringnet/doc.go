// Ringnet is the command for users and operators of package ringnet:
//
//	ringnet proxy --listen tcp://127.0.0.1:6379 --to auto://10.0.0.1:6380
//
// docs/command.md describes it; ringnet --help and ringnet SUBCOMMAND --help list
// the flags.
package main
