#include "global_store/metadata/etcd/leadership.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/boot_time.h"
#include "base/status.h"
#include "etcd/records.pb.h"
#include "global_store/metadata/etcd/counter.h"
#include "global_store/metadata/etcd/keys.h"
#include "rpc/retry.h"

namespace tensorcast::global_store::etcd {
namespace {

namespace pb = etcdserverpb;

// How often one that stands by looks whether no store leads.
constexpr absl::Duration kLook = absl::Milliseconds(150);
// Of the lease, for clocks that do not run alike.
constexpr double kMargin = 0.05;
// A keepalive each such part of the lease, so that one may be lost.
constexpr int kKeepAlives = 4;

pb::Compare Compares(const std::string& key, pb::Compare::CompareTarget target) {
  pb::Compare compare;
  compare.set_key(key);
  compare.set_target(target);
  compare.set_result(pb::Compare::EQUAL);
  return compare;
}

void Get(pb::TxnRequest& request, const std::string& key) {
  request.add_success()->mutable_request_range()->set_key(key);
}

pb::PutRequest& Put(pb::TxnRequest& request, const std::string& key, std::string value) {
  pb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(key);
  put.set_value(std::move(value));
  return put;
}

}  // namespace

// Reads the leader's entry and which epoch was the last, and then takes the lead in one transaction, which
// holds only if both are still so. Thus two stores never have one epoch.
absl::StatusOr<Leadership::Term> Leadership::TryOnce(Client* client, const LeadershipOptions& options,
                                                     const RequestContext& context, StoreAddress& other) {
  const Keys keys(options.prefix);
  pb::TxnRequest look;
  for (const std::string& key : {keys.Leader(), keys.Epoch(), keys.Format()}) Get(look, key);
  TC_ASSIGN_OR_RETURN(const pb::TxnResponse seen, client->Txn(context, look));
  const auto& leader = seen.responses(0).response_range();
  const auto& counter = seen.responses(1).response_range();
  const auto& format = seen.responses(2).response_range();
  if (format.kvs_size() > 0 && format.kvs(0).value() != kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(
        "lead by etcd: the metadata below ", options.prefix, " has format ", format.kvs(0).value(),
        ", and this program uses only format ", kFormat,
        "; run a release that uses the format of the metadata, or set another global_store.etcd.prefix"));
  }
  if (leader.kvs_size() > 0) {
    record::Leader found;
    found.ParseFromString(leader.kvs(0).value());
    other = {.name = found.name(), .address = found.address()};
    return absl::AbortedError("lead by etcd: another global store leads; wait until the leader's lease ends");
  }
  uint64_t epoch = 1;
  if (counter.kvs_size() > 0) {
    TC_ASSIGN_OR_RETURN(epoch, DecodeCounter(counter.kvs(0)));
    ++epoch;
  }

  // Counted from before the lease was asked for, so that this end counts it as over before etcd does. The
  // clock goes on while the machine sleeps.
  Term term{.since = SinceBoot(), .epoch = {.cluster = seen.header().cluster_id(), .number = epoch}};
  TC_ASSIGN_OR_RETURN(const Client::Lease lease, client->Grant(context, options.ttl));
  absl::Cleanup revoke = [&] { client->Revoke(context, lease.id).IgnoreError(); };
  term.lease = lease.id;
  term.ttl = lease.ttl;

  record::Leader self;
  self.set_name(options.name);
  self.set_address(options.address);
  pb::TxnRequest take;
  pb::Compare free = Compares(keys.Leader(), pb::Compare::CREATE);
  // 0: there is no such key.
  free.set_create_revision(0);
  pb::Compare unchanged = Compares(keys.Epoch(), pb::Compare::MOD);
  unchanged.set_mod_revision(counter.kvs_size() > 0 ? counter.kvs(0).mod_revision() : 0);
  *take.add_compare() = std::move(free);
  *take.add_compare() = std::move(unchanged);
  Put(take, keys.Leader(), self.SerializeAsString()).set_lease(term.lease);
  Put(take, keys.Epoch(), EncodeCounter(epoch));
  Put(take, keys.Sequence(), EncodeCounter(0));
  Put(take, keys.Format(), std::string(kFormat));
  take.add_failure()->mutable_request_range()->set_key(keys.Leader());
  TC_ASSIGN_OR_RETURN(const pb::TxnResponse taken, client->Txn(context, take));
  term.created = taken.header().revision();
  if (!taken.succeeded()) {
    // Unless it is this one's own, of an attempt with a lost answer.
    const auto& now = taken.responses(0).response_range();
    if (now.kvs_size() == 0 || now.kvs(0).lease() != term.lease) {
      return absl::AbortedError(
          "lead by etcd: another global store was faster; wait until the leader's lease ends");
    }
    term.created = now.kvs(0).create_revision();
  }
  std::move(revoke).Cancel();
  return term;
}

// Stands by for as long as another store leads or etcd is away. Any other error, such as another format,
// ends it.
absl::StatusOr<std::unique_ptr<Leadership>> Leadership::Campaign(
    Client* client, const LeadershipOptions& options, const RequestContext& context,
    absl::FunctionRef<void(const StoreAddress&)> on_leader) {
  StoreAddress told;
  std::string silent;
  while (true) {
    RequestContext attempt = context.Child();
    // A term counts from before its lease was granted: an attempt of more than one lease could only win a
    // term that is over.
    attempt.deadline = std::min(context.deadline, SteadyNow() + options.ttl);
    StoreAddress other = told;
    const absl::StatusOr<Term> term = TryOnce(client, options, attempt, other);
    if (term.ok()) {
      LOG(INFO) << "this global store leads, by etcd at " << client->endpoints() << ", in epoch "
                << term->epoch.number;
      return std::unique_ptr<Leadership>(new Leadership(client, options, *term));
    }
    if (other != told) on_leader(told = other);
    if (absl::IsUnavailable(term.status())) {
      LOG_IF(WARNING, silent.empty()) << "this global store waits for etcd: " << term.status().message();
      silent = std::string(term.status().message());
    } else if (!absl::IsAborted(term.status())) {
      TC_RETURN_IF_ERROR(context.Check("lead by etcd"));
      return term.status();
    } else {
      silent.clear();
    }
    TC_RETURN_IF_ERROR(rpc::SleepFor(context, kLook, "lead by etcd"));
  }
}

// A leadership ends once, by StepDown, and never begins again: KeepAlive finds that the lease has ended or
// that etcd did not answer in time, store.cc cannot tell whether a change happened, or the process resigns.
Leadership::Leadership(Client* client, const LeadershipOptions& options, const Term& term)
    : client_(client),
      options_(options),
      lease_(term.lease),
      created_(term.created),
      epoch_(term.epoch),
      since_(term.since),
      until_ns_(absl::ToInt64Nanoseconds(term.since + term.ttl * (1 - kMargin))),
      keep_alive_(TaskLoop::Every(term.ttl / kKeepAlives, [this] { KeepAlive(); })) {}

Leadership::~Leadership() {
  // The keepalive stops first: it could otherwise report the end of a lease that is revoked here on purpose.
  keep_alive_.reset();
  OnLost(nullptr);  // the caller that ends it knows
  StepDown(absl::UnavailableError(
      "lead by etcd: this global store has resigned; call the global store that leads now"));
  client_->Revoke(RequestContext::Background(options_.ttl), lease_).IgnoreError();
}

absl::Duration Leadership::led_for() const { return SinceBoot() - since_; }

absl::Duration Leadership::left() const {
  return std::max(absl::Nanoseconds(until_ns_.load()) - SinceBoot(), absl::ZeroDuration());
}

// By this process's clock, without asking etcd: once its lease may be over, another store may lead.
absl::Status Leadership::Check() const {
  if (left() > absl::ZeroDuration()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (!over_.ok()) return over_;
  return absl::UnavailableError(
      "lead by etcd: this global store no longer leads, because etcd did not answer in time; call the global "
      "store that leads now");
}

// Ends once, for the first reason. Calls to etcd that are under way are cancelled, and `lost` is called
// without the lock.
void Leadership::StepDown(const absl::Status& why) {
  until_ns_ = 0;
  std::function<void(const absl::Status&)> lost;
  {
    absl::MutexLock lock(&mutex_);
    if (!over_.ok()) return;
    over_ = why;
    lost = std::exchange(lost_, nullptr);
  }
  calls_.Cancel();
  if (lost != nullptr) lost(why);
}

RequestContext Leadership::While(absl::Duration patience) const {
  RequestContext context = RequestContext::Background(patience);
  context.cancellation = calls_;
  return context;
}

// At once where the leadership has ended already: its end is told exactly once, whichever comes first.
void Leadership::OnLost(std::function<void(const absl::Status&)> lost) {
  absl::Status over;
  {
    absl::MutexLock lock(&mutex_);
    over = over_;
    if (over.ok()) {
      lost_ = std::move(lost);
      return;
    }
  }
  if (lost != nullptr) lost(over);
}

// Each write to etcd has this condition: it holds only while the leader's entry is the one that this term
// made. So a store that has lost the lead without noticing writes nothing.
pb::Compare Leadership::Fence() const {
  pb::Compare fence = Compares(Keys(options_.prefix).Leader(), pb::Compare::CREATE);
  fence.set_create_revision(created_);
  return fence;
}

// Never lengthens what is over: a keepalive that comes after the end finds another to lead, or none.
void Leadership::KeepAlive() {
  if (const absl::Status leads = Check(); !leads.ok()) return StepDown(leads);
  const absl::Duration sent = SinceBoot();
  const absl::Duration left = absl::Nanoseconds(until_ns_.load()) - sent;
  // Counted from before the keepalive was sent: etcd counts from when it came, which is later.
  const absl::StatusOr<absl::Duration> ttl = client_->KeepAlive(RequestContext::Background(left), lease_);
  int64_t until = until_ns_.load();
  if (ttl.ok() && SinceBoot() < absl::Nanoseconds(until)) {
    const absl::Duration next = sent + *ttl * (1 - kMargin);
    // Unless it was ended meanwhile.
    until_ns_.compare_exchange_strong(until, absl::ToInt64Nanoseconds(next));
    return;
  }
  if (absl::IsNotFound(ttl.status())) {
    StepDown(absl::UnavailableError(
        "lead by etcd: this global store no longer leads, because its lease has ended; "
        "call the global store that leads now"));
  } else if (const absl::Status leads = Check(); !leads.ok()) {
    StepDown(leads);
  }
}

}  // namespace tensorcast::global_store::etcd
