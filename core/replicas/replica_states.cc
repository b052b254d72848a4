#include "core/replicas/replica_states.h"

#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "base/steady_time.h"

namespace tensorcast {

// A lease has a plain pointer to this object, so one that outlives it would write to freed memory: the check
// ends the process instead.
ReplicaStates::~ReplicaStates() {
  absl::MutexLock lock(&mutex);
  for (const auto& [id, record] : records.all()) {
    CHECK_EQ(record->info.leases, 0u) << "replica " << id << " is still leased while the engine is destroyed";
  }
  CHECK(failed.empty()) << "a replica that failed is still leased while the engine is destroyed";
}

// The listener hears of the replica before any change of it: both are queued under the mutex.
void ReplicaStates::Insert(const ReplicaRecordPtr& record) {
  Touch(*record);
  Notify(*record);
  records.Insert(record);
}

void ReplicaStates::Move(ReplicaRecord& record, ReplicaState to) {
  CHECK(IsLegalTransition(record.info.state, to))
      << "replica " << record.info.id << ": " << ReplicaStateName(record.info.state) << " -> "
      << ReplicaStateName(to);
  record.info.state = to;
  Notify(record);
}

void ReplicaStates::Notify(const ReplicaRecord& record) {
  // Only queued here, in the order of the changes: listeners are told without the mutex.
  notifier_->ReplicaChanged(record.info, record.manifest);
}

void ReplicaStates::Touch(ReplicaRecord& record) {
  record.info.last_used = SteadyNow();
  // Two uses can fall into one tick of the clock; the count orders them all the same.
  record.use_order = ++uses_;
}

absl::Status ReplicaStates::BeingRemoved() {
  return absl::UnavailableError("read the replica: the replica is being removed; use another source");
}

// A reader of a partial replica on behalf of others has to look elsewhere.
ReplicaStates::Rest ReplicaStates::Drain(const ReplicaRecordPtr& record) {
  Rest rest{.availability = std::exchange(record->availability, nullptr),
            .end = BeingRemoved(),
            .pool = record->info.location};
  if (rest.availability != nullptr) record->told_to_stop = SteadyNow();
  Move(*record, ReplicaState::kDraining);
  // The end of its last lease moves it on to gone (EndLease).
  if (record->info.leases > 0) return rest;
  Move(*record, ReplicaState::kGone);
  records.Erase(record->info.id);
  rest.storage = TakeStorage(*record);
  return rest;
}

ReplicaStates::Rest ReplicaStates::Fail(const ReplicaRecordPtr& record, absl::Status end) {
  Rest rest{.availability = record->availability, .end = std::move(end), .pool = record->info.location};
  Move(*record, ReplicaState::kFailed);
  records.Erase(record->info.id);
  if (record->info.leases > 0) {
    // Its readers go on with the memory. The last lease that ends frees it (EndLease).
    failed.insert(record);
  } else {
    rest.storage = TakeStorage(*record);
  }
  return rest;
}

ReplicaStorage ReplicaStates::TakeStorage(ReplicaRecord& record) {
  // First: a request that finds no room has to know that some is coming.
  space.BeginFreeing(record.info.location);
  return std::move(record.storage);
}

void ReplicaStates::Finish(Rest rest) {
  if (rest.availability != nullptr) rest.availability->End(rest.end);
  if (!rest.storage.has_value()) return;
  // First the memory, then the event: a thread that is woken must find the space.
  rest.storage.reset();
  space.EndFreeing(rest.pool);
}

std::unique_ptr<ReplicaLease> ReplicaStates::Lease(const ReplicaRecordPtr& record, bool to_serve) {
  if (record == nullptr) return nullptr;
  ++record->info.leases;
  record->servings += to_serve ? 1 : 0;
  Touch(*record);
  return std::unique_ptr<ReplicaLease>(new ReplicaLease(this, record, to_serve));
}

// Each lease that ends is an event: whether the replica drains or is now idle, there may be room to be had.
void ReplicaStates::EndLease(const ReplicaRecordPtr& record, bool to_serve) {
  Rest rest{.pool = record->info.location};
  {
    absl::MutexLock lock(&mutex);
    --record->info.leases;
    record->servings -= to_serve ? 1 : 0;
    Touch(*record);
    space.NoteChance();
    if (record->info.leases > 0) return;
    if (record->info.state == ReplicaState::kDraining) {
      Move(*record, ReplicaState::kGone);
      records.Erase(record->info.id);
      rest.storage = TakeStorage(*record);
    } else if (failed.erase(record) > 0) {
      rest.storage = TakeStorage(*record);
    }
  }
  Finish(std::move(rest));
}

// The condition reads the cancellation, which this mutex does not guard. Taking the mutex in the callback,
// and giving it back, is what makes absl look at the condition again.
// Conditions are looked at each time that the mutex is given back, so no state change needs to signal.
void ReplicaStates::AwaitUnlessCancelled(const RequestContext& context, absl::FunctionRef<bool()> condition) {
  const Cancellation::Registration wake =
      context.cancellation.OnCancel([this] { absl::MutexLock lock(&mutex); });
  absl::MutexLock lock(&mutex);
  auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return condition() || context.cancellation.IsCancelled();
  };
  mutex.AwaitWithTimeout(absl::Condition(&over), TimeLeft(context.deadline));
}

std::shared_ptr<const HostAllocation> ReplicaStates::HostOf(const ReplicaRecord& record) const {
  absl::MutexLock lock(&mutex);
  return record.storage.host;
}

// Made under the table's mutex, where the record cannot change. The copies of memory and availability stay
// valid for readers that hold no lock.
ReplicaLease::ReplicaLease(ReplicaStates* states, std::shared_ptr<ReplicaRecord> record, bool to_serve)
    : states_(states),
      record_(std::move(record)),
      to_serve_(to_serve),
      host_(record_->storage.host),
      device_(record_->storage.device),
      memory_(record_->Memory()),
      availability_(record_->availability),
      partial_(availability_ != nullptr &&
               !(record_->info.state == ReplicaState::kFilling && record_->whole)) {}

ReplicaLease::~ReplicaLease() {
  // Before the end is told, which says that there is room.
  host_.reset();
  device_.reset();
  states_->EndLease(record_, to_serve_);
}

std::vector<ConstHostSpan> ReplicaLease::HostSpans(uint64_t offset, uint64_t bytes) const {
  // What a partial replica got since the lease began is in the record's memory.
  const std::vector<HostSpan> spans = host_->Covers(offset, bytes)
                                          ? host_->Spans(offset, bytes)
                                          : states_->HostOf(*record_)->Spans(offset, bytes);
  return {spans.begin(), spans.end()};
}

const std::string& ReplicaLease::replica_id() const { return record_->info.id; }
const Location& ReplicaLease::location() const { return record_->info.location; }
const std::shared_ptr<const Manifest>& ReplicaLease::manifest() const { return record_->manifest; }
const TraceContext& ReplicaLease::made_by() const { return record_->made_by; }

}  // namespace tensorcast
