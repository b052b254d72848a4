#include "tools/workshop/chaos/key_load.h"

#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/request_context.h"
#include "base/status.h"
#include "rpc/retry.h"

namespace tensorcast::chaos {
namespace {

using Kind = KeyCall::Kind;
using Answer = KeyCall::Answer;

constexpr absl::Duration kPauseWithoutAnswer = absl::Milliseconds(200);

Answer AnswerOf(const absl::Status& status, const KeyCall& call) {
  if (status.ok()) return Answer::kDone;
  if (absl::IsNotFound(status) && call.kind != Kind::kBind) return Answer::kNotBound;
  // Of a call that expected nothing it is about something else than the key.
  if (absl::IsFailedPrecondition(status) && call.expected_revision.has_value()) return Answer::kRefused;
  return Answer::kNone;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeyLoad>> KeyLoad::Start(const KeyLoadOptions& options) {
  std::unique_ptr<KeyLoad> load(new KeyLoad(options));
  for (int i = 0; i < options.threads; ++i) {
    TC_ASSIGN_OR_RETURN(auto client,
                        client::Client::Connect({.daemon = options.daemons[i % options.daemons.size()]}));
    load->clients_.push_back(std::move(client));
  }
  for (int i = 0; i < options.threads; ++i) {
    load->threads_.emplace_back(
        [load = load.get(), client = load->clients_[i].get(),
         seed = options.seed + static_cast<uint32_t>(i)] { load->Run(*client, seed); });
  }
  return load;
}

void KeyLoad::Stop() {
  stop_.Cancel();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

absl::Status KeyLoad::Check() const {
  {
    absl::MutexLock lock(&mutex_);
    TC_RETURN_IF_ERROR(lost_);
  }
  return history_.Check();
}

void KeyLoad::Run(client::Client& client, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](size_t end) { return random() % end; };
  std::map<std::string, uint64_t> seen;  // the revision that this thread saw last
  RequestContext all = RequestContext::Background();
  all.cancellation = stop_;
  absl::Duration pause;
  // The draws of a thread depend on its seed alone, the answers on the cluster.
  do {
    KeyCall call{.key = absl::StrCat(options_.prefix, below(options_.keys))};
    const size_t draw = below(10);
    call.kind = draw < 5 ? Kind::kResolve : draw < 9 ? Kind::kBind : Kind::kDelete;
    if (call.kind == Kind::kBind) call.artifact_id = options_.artifacts[below(options_.artifacts.size())];
    if (call.kind != Kind::kResolve && below(2) == 0) call.expected_revision = seen[call.key];
    RequestContext context = RequestContext::Background(
        below(8) == 0 ? absl::Milliseconds(50 + 10 * below(80)) : options_.patience);
    context.cancellation = stop_;
    call = Call(client, context, std::move(call));
    if (call.answer == Answer::kDone) seen[call.key] = call.kind == Kind::kDelete ? 0 : call.revision;
    if (call.answer == Answer::kNotBound) seen[call.key] = 0;
    // Where no store answers, more of the same would tell nothing, and makes the history hard to explain.
    pause = call.answer == Answer::kNone ? kPauseWithoutAnswer : options_.pace;
    history_.Add(std::move(call));
  } while (rpc::SleepFor(all, pause, "load").ok());
}

KeyCall KeyLoad::Call(client::Client& client, const RequestContext& context, KeyCall call) {
  // The interval must cover the whole call: an order is allowed only where one call ended before another
  // began.
  call.begin = SteadyNow();
  absl::StatusOr<client::KeyInfo> key;
  switch (call.kind) {
    case Kind::kBind:
      key = client.BindKey(context, call.key, call.artifact_id, call.expected_revision);
      break;
    case Kind::kResolve:
      key = client.ResolveKey(context, call.key);
      break;
    case Kind::kDelete:
      key = absl::StatusOr<client::KeyInfo>(client::KeyInfo());
      if (absl::Status deleted = client.DeleteKey(context, call.key, call.expected_revision); !deleted.ok()) {
        key = std::move(deleted);
      }
      break;
  }
  call.end = SteadyNow();
  call.answer = AnswerOf(key.status(), call);
  if (call.answer == Answer::kDone && call.kind != Kind::kDelete) {
    call.revision = key->revision;
    call.artifact_id = key->artifact_id;
    // What a daemon knew before, and says that it could not ask, is not an answer of the store's.
    if (key->unconfirmed) call.answer = Answer::kNone;
  }
  if (call.kind == Kind::kBind && absl::IsNotFound(key.status())) {
    absl::MutexLock lock(&mutex_);
    lost_.Update(
        absl::InternalError(absl::StrCat("what was put is not there any more: ", key.status().message())));
  }
  return call;
}

}  // namespace tensorcast::chaos
