#include "global_store/metadata/etcd/store.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "etcd/records.pb.h"
#include "global_store/metadata/etcd/change_writer.h"
#include "global_store/metadata/etcd/keys.h"
#include "global_store/metadata/etcd/operations.h"
#include "global_store/metadata/fact_records.h"

namespace tensorcast::global_store::etcd {
namespace {

namespace pb = etcdserverpb;

constexpr size_t kPieceBytes = size_t{1} << 20;
// Of which several go with one transaction, and leave room for all else.
constexpr size_t kSmallManifestBytes = size_t{64} << 10;
constexpr int64_t kPage = 4096;
// Changes are small, so a page of these is; of pieces it is not.
constexpr int64_t kPiecesPage = 16;

// A change takes this way: Commit makes its operations, large manifests are written as pieces beforehand, and
// the change writer queues the operations. One of the waiting callers becomes the writing caller. It sends
// its own and the following operations as one transaction, and tells each of them the outcome. No lock but
// `commit_mutex_` is held while etcd is called.
class Store final : public MetadataStore {
 public:
  Store(Client* client, Leadership* leadership, const std::string& prefix)
      : client_(*client),
        leadership_(*leadership),
        keys_(prefix),
        writer_(client, leadership, keys_.Sequence()) {}

  std::string_view name() const override { return "etcd"; }
  absl::Status Commit(const WriteBatch& batch) override;
  absl::StatusOr<DurableFacts> Load() override;
  absl::StatusOr<std::string> ReadManifest(std::string_view artifact_id) override;
  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) override;
  absl::Status Purge(const PurgeTimes& before) override;
  absl::Status Check() const override { return leadership_.Check(); }

 private:
  using EachPair = std::function<absl::Status(std::string_view name, const mvccpb::KeyValue& pair)>;

  Operations OperationsOf(const WriteBatch& batch) const;
  absl::Status AddManifest(const ManifestBlob& manifest, Operations& change)
      ABSL_SHARED_LOCKS_REQUIRED(commit_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<pb::RangeResponse> Range(const pb::RangeRequest& request);
  absl::Status ForEach(const std::string& folder, bool values, const EachPair& each);
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key);
  absl::Status PurgeRequests(absl::Time before);
  absl::Status PurgeFacts(const PurgeTimes& before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_);
  absl::Status SweepPieces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_);
  absl::Status Compact() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_);

  Client& client_;
  Leadership& leadership_;
  const Keys keys_;
  ChangeWriter writer_;

  // Shared by changes, alone for what drops facts by what it read before. Taken before the other.
  absl::Mutex commit_mutex_;
  absl::Mutex mutex_;
  uint64_t writings_ ABSL_GUARDED_BY(mutex_) = 0;  // of manifests
  // By their hashes, the requests that were recorded: any other need not be asked for, since no other
  // store writes. Nothing until Load.
  std::optional<absl::flat_hash_set<size_t>> requests_ ABSL_GUARDED_BY(mutex_);

  int64_t compact_next_ ABSL_GUARDED_BY(commit_mutex_) = 0;  // the revision at the purge before
};

Operations Store::OperationsOf(const WriteBatch& batch) const {
  Operations all;
  for (const Fact& fact : Encode(batch.facts)) {
    const std::string key = keys_.Facts(fact.kind) + fact.name;
    fact.forgotten ? all.Delete(key) : all.Put(key, fact.record);
    if (!fact.DeletesArtifact()) continue;
    all.Delete(keys_.Manifests() + fact.name);
    all.DeleteFolder(keys_.PiecesOf(fact.name));
    all.DeleteFolder(keys_.Facts(FactKind::kTask) + TaskPrefix(fact.name));
  }
  if (batch.request.has_value()) {
    const RequestRecord& request = *batch.request;
    record::Request kept;
    kept.set_response(request.response);
    kept.set_recorded_ns(absl::ToUnixNanos(request.recorded));
    all.Put(keys_.Requests() + request.request, kept.SerializeAsString());
    all.Put(keys_.RequestAge(absl::ToUnixNanos(request.recorded), request.request), "");
  }
  return all;
}

absl::Status Store::Commit(const WriteBatch& batch) {
  Operations operations = OperationsOf(batch);
  if (batch.request.has_value()) {
    // A lookup that comes during the write must ask etcd, not take the request for a new one.
    // Before it is written, whatever becomes of that.
    absl::MutexLock lock(&mutex_);
    if (requests_.has_value()) requests_->insert(absl::HashOf(std::string_view(batch.request->request)));
  }
  absl::ReaderMutexLock lock(&commit_mutex_);
  for (const ManifestBlob& manifest : batch.manifests) TC_RETURN_IF_ERROR(AddManifest(manifest, operations));
  return writer_.Write(operations);
}

// What does not go with the change itself is written here; only the change names it.
absl::Status Store::AddManifest(const ManifestBlob& manifest, Operations& change) {
  record::Manifest named;
  {
    absl::MutexLock lock(&mutex_);
    // Unique in the cluster: below the epoch, and never the same one again in it.
    named.set_writing(leadership_.epoch().number << 32 | ++writings_);
  }
  named.set_bytes(manifest.bytes.size());
  const bool small = manifest.bytes.size() <= kSmallManifestBytes;
  const std::string folder = keys_.PiecesOf(manifest.artifact_id, named.writing());
  for (size_t offset = 0; offset < manifest.bytes.size(); offset += kPieceBytes) {
    const std::string key = absl::StrFormat("%s%08x", folder, named.pieces());
    std::string bytes(manifest.bytes.substr(offset, kPieceBytes));
    if (small) {
      change.Put(key, std::move(bytes));
    } else {
      Operations piece;
      piece.Put(key, std::move(bytes));
      TC_RETURN_IF_ERROR(writer_.Write(piece));
    }
    named.set_pieces(named.pieces() + 1);
  }
  change.Put(keys_.Manifests() + manifest.artifact_id, named.SerializeAsString());
  return absl::OkStatus();
}

absl::StatusOr<pb::RangeResponse> Store::Range(const pb::RangeRequest& request) {
  absl::StatusOr<pb::RangeResponse> found = client_.Range(leadership_.While(kPatience), request);
  if (absl::IsCancelled(found.status())) return leadership_.Check();
  return found;
}

absl::Status Store::ForEach(const std::string& folder, bool values, const EachPair& each) {
  pb::RangeRequest request;
  request.set_key(folder);
  request.set_range_end(EndOf(folder));
  // The facts are read in pages: a range of all facts could be as large as the database.
  request.set_limit(kPage);
  request.set_keys_only(!values);
  while (true) {
    TC_ASSIGN_OR_RETURN(const pb::RangeResponse page, Range(request));
    for (const mvccpb::KeyValue& pair : page.kvs()) {
      TC_RETURN_IF_ERROR(each(std::string_view(pair.key()).substr(folder.size()), pair));
    }
    if (!page.more() || page.kvs().empty()) return absl::OkStatus();
    request.set_revision(page.header().revision());  // all pages as they were at the first
    request.set_key(page.kvs(page.kvs_size() - 1).key() + '\0');
  }
}

absl::StatusOr<std::optional<std::string>> Store::Get(const std::string& key) {
  pb::RangeRequest request;
  request.set_key(key);
  TC_ASSIGN_OR_RETURN(pb::RangeResponse found, Range(request));
  if (found.kvs_size() == 0) return std::nullopt;
  return std::move(*found.mutable_kvs(0)->mutable_value());
}

absl::StatusOr<DurableFacts> Store::Load() {
  DurableFacts facts;
  absl::flat_hash_set<size_t> requests;
  TC_RETURN_IF_ERROR(ForEach(keys_.Requests(), /*values=*/false,
                             [&](std::string_view request, const mvccpb::KeyValue&) -> absl::Status {
                               requests.insert(absl::HashOf(request));
                               return absl::OkStatus();
                             }));
  {
    absl::MutexLock lock(&mutex_);
    requests_ = std::move(requests);
  }
  for (const FactKind kind : kFactKinds) {
    TC_RETURN_IF_ERROR(
        ForEach(keys_.Facts(kind), /*values=*/true, [&](std::string_view name, const mvccpb::KeyValue& pair) {
          return Decode(kind, name, pair.value(), facts);
        }));
  }
  // No other store wrote while it was read.
  TC_RETURN_IF_ERROR(leadership_.Check());
  return facts;
}

absl::StatusOr<std::string> Store::ReadManifest(std::string_view artifact_id) {
  TC_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                      Get(absl::StrCat(keys_.Manifests(), artifact_id)));
  if (!value.has_value()) return NoManifest(artifact_id);
  const auto lost = [&] {
    return absl::DataLossError(
        absl::StrCat("read the manifest of ", artifact_id,
                     ": the manifest in etcd is damaged or incomplete; restore etcd from a snapshot"));
  };
  record::Manifest manifest;
  if (!manifest.ParseFromString(*value)) return lost();
  std::string bytes;
  pb::RangeRequest request;
  const std::string folder = keys_.PiecesOf(artifact_id, manifest.writing());
  request.set_range_end(EndOf(folder));
  request.set_limit(kPiecesPage);
  for (uint32_t piece = 0; piece < manifest.pieces(); piece += kPiecesPage) {
    request.set_key(absl::StrFormat("%s%08x", folder, piece));
    TC_ASSIGN_OR_RETURN(const pb::RangeResponse page, Range(request));
    for (const mvccpb::KeyValue& pair : page.kvs()) bytes += pair.value();
  }
  if (bytes.size() != manifest.bytes()) return lost();
  return bytes;
}

absl::StatusOr<std::optional<std::string>> Store::FindResponse(std::string_view request) {
  {
    absl::MutexLock lock(&mutex_);
    if (requests_.has_value() && !requests_->contains(absl::HashOf(request))) {
      TC_RETURN_IF_ERROR(leadership_.Check());
      return std::nullopt;
    }
  }
  TC_ASSIGN_OR_RETURN(const std::optional<std::string> value, Get(absl::StrCat(keys_.Requests(), request)));
  if (!value.has_value()) return std::nullopt;
  record::Request kept;
  if (kept.ParseFromString(*value)) return std::move(*kept.mutable_response());
  return absl::DataLossError(absl::StrCat("find the answer to request ", request,
                                          ": the record in etcd is damaged; restore etcd from a snapshot"));
}

absl::Status Store::Purge(const PurgeTimes& before) {
  TC_RETURN_IF_ERROR(leadership_.Check());
  TC_RETURN_IF_ERROR(PurgeRequests(before.requests));
  absl::MutexLock lock(&commit_mutex_);
  TC_RETURN_IF_ERROR(PurgeFacts(before));
  TC_RETURN_IF_ERROR(SweepPieces());
  return Compact();
}

// A request that was recorded again meanwhile has another age, too, and is forgotten with the first: what it
// answers is as old.
absl::Status Store::PurgeRequests(absl::Time before) {
  const int64_t until = std::max<int64_t>(absl::ToUnixNanos(before), 0);
  pb::RangeRequest request;
  request.set_key(keys_.RequestAges());
  request.set_range_end(keys_.RequestAge(until, ""));
  // Each request takes two deletions, so a page fills half of what a transaction may hold.
  request.set_limit(kOperations * kTxnsInTxn / 4);
  request.set_keys_only(true);
  while (true) {
    TC_ASSIGN_OR_RETURN(const pb::RangeResponse page, Range(request));
    Operations drop;
    for (const mvccpb::KeyValue& pair : page.kvs()) {
      drop.Delete(pair.key());
      const std::string name = pair.key().substr(keys_.RequestAge(0, "").size());
      drop.Delete(keys_.Requests() + name);
      absl::MutexLock lock(&mutex_);
      if (requests_.has_value()) requests_->erase(absl::HashOf(std::string_view(name)));
    }
    if (drop.count() > 0) TC_RETURN_IF_ERROR(writer_.Write(drop));
    if (!page.more()) return absl::OkStatus();
  }
}

absl::Status Store::PurgeFacts(const PurgeTimes& before) {
  std::vector<std::string> old;
  for (const FactKind kind : kFactKinds) {
    TC_RETURN_IF_ERROR(ForEach(keys_.Facts(kind), /*values=*/true,
                               [&](std::string_view name, const mvccpb::KeyValue& pair) -> absl::Status {
                                 DurableFacts one;
                                 TC_RETURN_IF_ERROR(Decode(kind, name, pair.value(), one));
                                 if (Encode(one).front().IsOld(before)) old.push_back(pair.key());
                                 return absl::OkStatus();
                               }));
  }
  for (size_t i = 0; i < old.size(); i += kOperations) {
    Operations drop;
    for (size_t j = i; j < std::min(old.size(), i + kOperations); ++j) drop.Delete(old[j]);
    TC_RETURN_IF_ERROR(writer_.Write(drop));
  }
  return absl::OkStatus();
}

// This drops the pieces of manifests that were replaced, or not written to their end. With `commit_mutex_`
// held alone no manifest is being written, so a folder that no manifest names is garbage.
absl::Status Store::SweepPieces() {
  std::set<std::string> found;  // folders
  TC_RETURN_IF_ERROR(
      ForEach(keys_.Pieces(), /*values=*/false, [&](std::string_view, const mvccpb::KeyValue& pair) {
        found.insert(pair.key().substr(0, pair.key().rfind('/') + 1));
        return absl::OkStatus();
      }));
  TC_RETURN_IF_ERROR(
      ForEach(keys_.Manifests(), /*values=*/true, [&](std::string_view name, const mvccpb::KeyValue& pair) {
        record::Manifest manifest;
        if (manifest.ParseFromString(pair.value())) found.erase(keys_.PiecesOf(name, manifest.writing()));
        return absl::OkStatus();
      }));
  for (const std::string& folder : found) {
    Operations drop;
    drop.DeleteFolder(folder);
    TC_RETURN_IF_ERROR(writer_.Write(drop));
  }
  return absl::OkStatus();
}

absl::Status Store::Compact() {
  TC_ASSIGN_OR_RETURN(const pb::StatusResponse status, client_.Status(leadership_.While(kPatience)));
  // Only the history before the previous purge goes, so that ForEach can still read its later pages at the
  // revision of the first.
  const int64_t revision = std::exchange(compact_next_, status.header().revision());
  if (revision == 0) return absl::OkStatus();
  const absl::Status compacted = client_.Compact(leadership_.While(kPatience), revision);
  // Another store did.
  return absl::IsOutOfRange(compacted) ? absl::OkStatus() : compacted;
}

}  // namespace

std::unique_ptr<MetadataStore> MakeStore(Client* client, Leadership* leadership, const std::string& prefix) {
  return std::make_unique<Store>(client, leadership, prefix);
}

}  // namespace tensorcast::global_store::etcd
