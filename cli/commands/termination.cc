#include "cli/commands/termination.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/synchronization/mutex.h"
#include "base/text.h"
#include "otel/api/span.h"

namespace tensorcast::cli {
namespace {

constexpr int kInterrupted = 130;

// Written once, before another thread can fail (PrintErrorsAsJson), so it needs no lock.
bool errors_as_json = false;

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// What a second signal calls.
struct Leftovers {
  absl::Mutex mutex;
  std::vector<std::function<void()>> clean_ups ABSL_GUARDED_BY(mutex);
};

// Never destroyed: the thread of the signals may need it while the process exits.
Leftovers& AllLeftovers() {
  static absl::NoDestructor<Leftovers> leftovers;
  return *leftovers;
}

void RemoveLeftovers() {
  Leftovers& leftovers = AllLeftovers();
  absl::MutexLock lock(&leftovers.mutex);
  // The lock stays held: a clean-up that another thread adds from here on waits, and the process ends
  // meanwhile.
  for (const std::function<void()>& clean_up : leftovers.clean_ups) clean_up();
}

}  // namespace

void RemoveWhenTerminatedAgain(const std::string& path) {
  CallWhenTerminatedAgain([path] { unlink(path.c_str()); });
}

void CallWhenTerminatedAgain(std::function<void()> clean_up) {
  Leftovers& leftovers = AllLeftovers();
  absl::MutexLock lock(&leftovers.mutex);
  leftovers.clean_ups.push_back(std::move(clean_up));
}

Cancellation OnTerminationSignal() {
  // A thread of its own waits for the signals, which are blocked in all the others, so no code of ours runs
  // in a signal handler. The first one cancels; the second one ends the process from here, whatever hangs.
  static const Cancellation cancellation = [] {
    Cancellation cancel;
    std::thread([cancel] {
      const sigset_t signals = TerminationSignals();
      int number = 0;
      sigwait(&signals, &number);
      cancel.Cancel();
      sigwait(&signals, &number);
      RemoveLeftovers();
      // No destructors: other threads are still at work.
      _exit(kInterrupted);
    }).detach();
    return cancel;
  }();
  return cancellation;
}

void HandleSignals() {
  const sigset_t signals = TerminationSignals();
  // Before any other thread exists, so that all of them inherit it.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A peer that closed its end is an error of the one write, not the end of this process.
  signal(SIGPIPE, SIG_IGN);
  (void)OnTerminationSignal();  // its thread takes them, also from commands that never ask
}

RequestContext InterruptibleContext(absl::Duration timeout) {
  RequestContext context = RequestContext::Background(timeout);
  context.cancellation = OnTerminationSignal();
  // The calls of a spanned command become children of its span.
  if (const TraceContext& command = otel::CurrentContext(); command.IsValid()) context.trace = command;
  return context;
}

void PrintErrorsAsJson(bool as_json) { errors_as_json = as_json; }

int Fail(const absl::Status& status) {
  // Besides stderr, so that a program that reads the result as JSON finds the error in its place.
  if (errors_as_json) {
    nlohmann::json details = nlohmann::json::array();
    status.ForEachPayload(
        [&](std::string_view type, const absl::Cord&) { details.push_back({{"type", std::string(type)}}); });
    const nlohmann::json error = {{"code", absl::StatusCodeToString(status.code())},
                                  {"message", std::string(status.message())},
                                  {"details", std::move(details)}};
    std::printf("%s\n", nlohmann::json({{"error", error}})
                            .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
    std::fflush(stdout);
  }
  std::fprintf(stderr, "tensorcast: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               Printable(status.message(), /*keep_lines=*/true).c_str());
  // Whatever the error: an interrupt makes calls fail in many ways.
  return OnTerminationSignal().IsCancelled() ? kInterrupted : 1;
}

int ExitCode(const absl::Status& status) { return status.ok() ? 0 : Fail(status); }

int EndlessExitCode(const absl::Status& status) {
  return OnTerminationSignal().IsCancelled() ? kInterrupted : ExitCode(status);
}

}  // namespace tensorcast::cli
