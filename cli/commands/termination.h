// How the program ends: what Ctrl-C and SIGTERM do to a command, and the exit code that an error gives.
//
// One thread waits for the signals from the start. The first one cancels OnTerminationSignal(), on which a
// command ends what it does, wherever it is in it; the second one ends the process at once.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/request_context.h"

namespace tensorcast::cli {

// To be called before any other thread starts.
void HandleSignals();
Cancellation OnTerminationSignal();
// A context that OnTerminationSignal() cancels.
RequestContext InterruptibleContext(absl::Duration timeout = absl::InfiniteDuration());
// A file that nothing else removes when a second signal ends the process: a server's sockets.
void RemoveWhenTerminatedAgain(const std::string& path);
// For what is more than one file: `clean_up` runs on the thread of the signals, while other threads still
// work, and the process ends when it returns.
void CallWhenTerminatedAgain(std::function<void()> clean_up);

// Whether Fail also prints the error on stdout, from here on: {"error": {"code", "message", "details"}},
// where the details name the types of what else the error carries. Before any other thread fails.
void PrintErrorsAsJson(bool as_json);
// Prints the error on stderr; the exit code for it: 1, or 130 when the user interrupted.
int Fail(const absl::Status& status);
int ExitCode(const absl::Status& status);  // 0 when OK, else Fail
inline int ExitCode(int code) { return code; }
// ExitCode for a command that runs until it is interrupted: 130 then, without an error.
int EndlessExitCode(const absl::Status& status);

}  // namespace tensorcast::cli
