#include "global_store/metadata/etcd/change_writer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "global_store/metadata/etcd/counter.h"

namespace tensorcast::global_store::etcd {
namespace {

namespace pb = etcdserverpb;

}  // namespace

// A caller that finds none writing writes what waits, as far as that fits into one transaction, until its
// own is done.
absl::Status ChangeWriter::Write(const Operations& operations) {
  if (!operations.fits()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "write a change to etcd: the change has ", operations.count(), " operations and ", operations.bytes(),
        " bytes, more than one etcd transaction can hold; change less in one call"));
  }
  Waiting self{.operations = &operations};
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(&self);
  const auto turn = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return self.done || !writing_; };
  while (true) {
    mutex_.Await(absl::Condition(&turn));
    if (self.done) return self.status;
    // The callers that came first; this one may not be among them.
    writing_ = true;
    // The first change is written however large it is. Further ones join it as long as etcd takes them
    // together.
    Operations together = *waiting_.front()->operations;
    std::vector<Waiting*> those = {waiting_.front()};
    waiting_.pop_front();
    while (!waiting_.empty() && together.JoinsWith(*waiting_.front()->operations)) {
      together.Add(*waiting_.front()->operations);
      those.push_back(waiting_.front());
      waiting_.pop_front();
    }
    mutex_.Unlock();
    const absl::Status status = WriteTogether(together);
    mutex_.Lock();
    writing_ = false;
    for (Waiting* one : those) {
      one->status = status;
      one->done = true;
    }
  }
}

// Repeats one change until its outcome is known: it happened, etcd refused it, or this store does not lead
// any more. An outcome that stays unknown ends the leadership, since the next change could not be compared
// with it.
absl::Status ChangeWriter::WriteTogether(const Operations& operations) {
  while (true) {
    TC_RETURN_IF_ERROR(leadership_.Check());
    const uint64_t own = ++tried_;
    const absl::StatusOr<pb::TxnResponse> answer =
        client_.Txn(leadership_.While(kPatience), ChangeOf(operations, own));
    if (answer.ok() && answer->succeeded()) {
      sequence_ = own;
      return absl::OkStatus();
    }
    if (!answer.ok()) {
      if (absl::IsCancelled(answer.status())) return leadership_.Check();
      if (!absl::IsUnavailable(answer.status())) return answer.status();  // etcd refused it
      return EndLeadership(answer.status());
    }
    // The transaction's failure branch read the sequence, where the leader's entry is still this term's.
    const pb::TxnResponse& seen = answer->responses(0).response_txn();
    if (!seen.succeeded() || seen.responses(0).response_range().kvs_size() == 0) {
      return EndLeadership(absl::UnavailableError("another global store leads"));
    }
    TC_ASSIGN_OR_RETURN(sequence_, DecodeCounter(seen.responses(0).response_range().kvs(0)));
    // By an attempt with a lost answer. Else by a change before, of which etcd said at last that it was
    // refused: then this one is still to be made.
    if (sequence_ == own) return absl::OkStatus();
  }
}

// Happens at most once: the change compares the sequence with its previous value and sets it to `own`. So an
// attempt that is repeated, or that etcd carries out late, finds another value and changes nothing.
pb::TxnRequest ChangeWriter::ChangeOf(const Operations& operations, uint64_t own) const {
  pb::TxnRequest txn;
  *txn.add_compare() = leadership_.Fence();
  pb::Compare& sequence = *txn.add_compare();
  sequence.set_key(sequence_key_);
  sequence.set_target(pb::Compare::VALUE);
  sequence.set_result(pb::Compare::EQUAL);
  sequence.set_value(EncodeCounter(sequence_));
  pb::PutRequest& change = *txn.add_success()->mutable_request_put();
  change.set_key(sequence_key_);
  change.set_value(EncodeCounter(own));
  operations.AppendTo(txn);
  pb::TxnRequest& otherwise = *txn.add_failure()->mutable_request_txn();
  *otherwise.add_compare() = leadership_.Fence();
  otherwise.add_success()->mutable_request_range()->set_key(sequence_key_);
  return txn;
}

absl::Status ChangeWriter::EndLeadership(const absl::Status& why) {
  leadership_.StepDown(
      absl::UnavailableError(absl::StrCat("lead by etcd: this global store no longer leads (", why.message(),
                                          "); call the global store that leads now")));
  return leadership_.Check();
}

}  // namespace tensorcast::global_store::etcd
