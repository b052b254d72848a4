#include "tensorcast/changes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/changes_state.h"
#include "client/named.h"
#include "client/replica_state.h"
#include "client/session.h"
#include "core/difference/changed_marks.h"
#include "core/difference/difference_artifact.h"

namespace tensorcast::client {
namespace {

// A longer way costs more than a comparison of both images.
constexpr size_t kMaxDifferences = 8;
constexpr size_t kMaxDescribed = 16;  // calls that look for the way
// Compared, or copied, at a time. A multiple of kTensorAlignment.
constexpr uint64_t kPartBytes = uint64_t{1} << 20;
constexpr size_t kVisitedAtOnce = 4096;
// A tensor of which a larger part changed is given whole: an index takes eight bytes.
constexpr uint64_t kMinUnchangedPerChanged = 4;

using Path = std::vector<std::string>;  // ids of differences

// The fewest differences that lead from `base` to `target`, in order; empty: there are none.
// A breadth-first search from the target backwards, since an artifact names the differences that lead to it.
// It ends at the shortest way, after kMaxDescribed calls, or where no difference is left.
absl::StatusOr<Path> FindPath(AdminClient& calls, const RequestContext& context, const std::string& base,
                              const std::string& target) {
  std::deque<std::pair<std::string, Path>> reached = {
      {target, {}}};  // artifacts from which the target is made
  std::set<std::string> seen = {target};
  for (size_t described = 0; !reached.empty() && described < kMaxDescribed; ++described) {
    const auto [artifact_id, rest] = std::move(reached.front());
    reached.pop_front();
    const absl::StatusOr<v1::Artifact> artifact = calls.DescribeArtifact(context, artifact_id);
    // An earlier version may have gone while its differences are still there.
    if (absl::IsNotFound(artifact.status()) && artifact_id != target) continue;
    if (!artifact.ok()) return artifact.status();
    for (const v1::Difference& edge : artifact->differences()) {
      if (edge.target_id() != artifact_id) continue;
      Path path = {edge.artifact_id()};
      path.insert(path.end(), rest.begin(), rest.end());
      if (edge.base_id() == base) return path;
      if (path.size() < kMaxDifferences && seen.insert(edge.base_id()).second) {
        reached.emplace_back(edge.base_id(), std::move(path));
      }
    }
  }
  return Path();
}

// The chunks of the target that the differences change.
std::vector<ChangedPart> PartsOfDifferences(const std::vector<uint32_t>& chunks, const ImageLayout& layout,
                                            DecoderPath path) {
  std::vector<ChangedPart> parts;
  for (const uint32_t chunk : chunks) {
    const RecordMode mode = ModeOf(path, chunk);
    if (mode == RecordMode::kSame) continue;
    parts.push_back({.range = layout.chunk(chunk), .whole = mode == RecordMode::kWhole, .chunk = chunk});
  }
  return parts;
}

}  // namespace

std::string_view ChangesSourceName(ChangesSource source) {
  switch (source) {
    case ChangesSource::kSame:
      return "same";
    case ChangesSource::kDifferences:
      return "differences";
    case ChangesSource::kComparison:
      return "comparison";
    case ChangesSource::kWhole:
      break;
  }
  return "whole";
}

Changes::Changes(std::unique_ptr<State> state) : state_(std::move(state)) {}
Changes::~Changes() = default;

ChangesSource Changes::source() const { return state_->source; }
const std::string& Changes::base_id() const { return state_->base_id; }
size_t Changes::differences() const { return state_->decoders.size(); }

absl::StatusOr<Changes::Target> Changes::TargetOf(const Replica& replica) {
  const Replica::State& state = *replica.state_;
  if (state.image.empty() && state.manifest->layout().image_bytes > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("read the changes to ", replica.artifact_id(), ": ", state.WhyNotMapped()));
  }
  Target target{.artifact_id = replica.artifact_id(),
                .manifest = state.manifest,
                .image = state.image,
                .chunks = state.chosen.chunks,
                .tensors = state.chosen.tensors};
  for (const uint32_t place : target.tensors) {
    const Tensor& tensor = state.manifest->layout().tensors[place];
    target.places.push_back({tensor.offset, tensor.nbytes});
  }
  return target;
}

// Finds and opens the differences between two artifacts.
class Changes::Finder {
 public:
  Finder(Client& client, Session& session, const RequestContext& context, const ImageLayout& layout)
      : client_(client), session_(session), context_(context), layout_(layout) {}

  struct Differences {
    std::vector<std::unique_ptr<Replica>> replicas;
    std::vector<DifferenceDecoder> decoders;
  };

  // nullopt: no differences connect the two versions.
  std::optional<Differences> Find(const std::string& base_id, const std::string& target_id) const {
    absl::StatusOr<Differences> found = Get(base_id, target_id);
    // The elements that changed are the same in both directions, which makes a rollback cheap.
    if (!found.ok()) found = Get(target_id, base_id);
    if (found.ok()) return *std::move(found);
    VLOG(1) << "read the changes from " << base_id << " to " << target_id
            << ": the differences are not used: " << found.status();
    return std::nullopt;
  }

 private:
  // The differences are got whole and stay attached as long as the changes: the decoders read their memory.
  absl::StatusOr<Differences> Get(const std::string& base_id, const std::string& target_id) const {
    TC_ASSIGN_OR_RETURN(const Path path, FindPath(session_.calls, context_, base_id, target_id));
    if (path.empty()) {
      return absl::NotFoundError(
          absl::StrCat("the store has no differences from ", base_id, " to ", target_id));
    }
    Differences differences;
    std::string reached = base_id;
    for (const std::string& id : path) {
      TC_ASSIGN_OR_RETURN(std::unique_ptr<Replica> replica, client_.Get(context_, id));
      TC_ASSIGN_OR_RETURN(const Target difference, TargetOf(*replica));
      TC_ASSIGN_OR_RETURN(DifferenceEnds ends, EndsOf(*difference.manifest));
      if (ends.base != reached) {
        return absl::DataLossError(absl::StrCat("difference ", id, " has base ", ends.base,
                                                ", but the differences before it lead to ", reached));
      }
      reached = std::move(ends.target);
      // The codec reads pieces that it does not write to.
      const std::span<std::byte> piece(
          const_cast<std::byte*>(difference.image.data()),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
          difference.image.size());
      TC_ASSIGN_OR_RETURN(
          DifferenceDecoder decoder,
          DifferenceDecoder::Open(difference.manifest->layout(), {&piece, 1}, GeometryOf(layout_)));
      differences.replicas.push_back(std::move(replica));
      differences.decoders.push_back(std::move(decoder));
    }
    if (reached != target_id) {
      return absl::DataLossError(absl::StrCat("the differences lead to ", reached, ", not to ", target_id));
    }
    return differences;
  }

  Client& client_;
  Session& session_;
  const RequestContext& context_;
  const ImageLayout& layout_;
};

// What tells the changed elements, the cheapest first: both versions are the same; differences; a comparison
// with the base's image, which is got whole for that; nothing, and all bytes count as changed. Where
// differences cannot be had, the next is tried, unless the context has ended.
absl::StatusOr<std::unique_ptr<Changes>> Changes::Find(Client& client, const RequestContext& context,
                                                       std::string_view base, const Replica& target,
                                                       const ChangesOptions& options) {
  auto state = std::make_unique<State>();
  TC_ASSIGN_OR_RETURN(state->target, TargetOf(target));
  const ImageLayout& layout = state->target.manifest->layout();
  const auto made = [&] { return std::unique_ptr<Changes>(new Changes(std::move(state))); };
  // The parts of a tensor, to be compared with its bytes in the base; null: whole.
  const auto add_parts = [&](size_t i, const std::byte* base_bytes) {
    const ByteRange place = state->target.places[i];
    const uint32_t width = ElementWidth(layout.tensors[state->target.tensors[i]].dtype);
    for (uint64_t done = 0; done < place.bytes; done += kPartBytes) {
      state->parts.push_back({.range = {place.offset + done, std::min(kPartBytes, place.bytes - done)},
                              .whole = base_bytes == nullptr,
                              .base = base_bytes == nullptr ? nullptr : base_bytes + done,
                              .width = width});
    }
  };
  const auto all_whole = [&] {
    for (size_t i = 0; i < state->target.places.size(); ++i) add_parts(i, nullptr);
    return made();
  };
  if (base.empty()) return all_whole();
  TC_RETURN_IF_ERROR(CheckNamed(base));
  Session& session = *client.session_;
  const RequestContext operation = OperationContext(context);
  if (IsArtifactId(base)) {
    state->base_id = base;
  } else {
    TC_ASSIGN_OR_RETURN(state->base_id, ArtifactIdOf(*session.link, operation, base));
  }
  if (state->base_id == state->target.artifact_id) {
    state->source = ChangesSource::kSame;
    return made();
  }
  const Finder finder(client, session, operation, layout);
  if (auto found = finder.Find(state->base_id, state->target.artifact_id); found.has_value()) {
    state->source = ChangesSource::kDifferences;
    state->differences = std::move(found->replicas);
    state->decoders = std::move(found->decoders);
    for (const DifferenceDecoder& decoder : state->decoders) state->path.push_back(&decoder);
    state->parts = PartsOfDifferences(state->target.chunks, layout, state->path);
    return made();
  }
  TC_RETURN_IF_ERROR(operation.Check("read changes"));
  if (!options.compare) return all_whole();
  TC_ASSIGN_OR_RETURN(state->base, client.Get(context, state->base_id));
  state->source = ChangesSource::kComparison;
  for (size_t i = 0; i < state->target.places.size(); ++i) {
    const Tensor& tensor = layout.tensors[state->target.tensors[i]];
    const absl::StatusOr<TensorView> before = state->base->Find(tensor.name);
    const bool alike =
        before.ok() && before->dtype == tensor.dtype && std::ranges::equal(before->shape, tensor.shape);
    add_parts(i, alike ? before->host.data() : nullptr);
  }
  return made();
}

// A part of a comparison is marked first (a bit for each element), and the marks are then read, so that the
// comparison runs at the speed of memory.
bool Changes::State::Visit(const ChangedPart& part, ChangesReader& reader,
                           absl::FunctionRef<void(const ChangedElements&)> visit) const {
  if (part.whole) return false;
  if (part.base == nullptr) {
    const absl::Status visited = reader.rebuilder.VisitChanges(path, part.chunk, visit);
    if (!visited.ok()) {
      LOG_FIRST_N(WARNING, 10) << "find the changes in chunk " << part.chunk << ": " << visited
                               << "; the whole chunk counts as changed";
    }
    return visited.ok();
  }
  // To the next tensor: both images have zeros there.
  const uint64_t bytes = (part.range.bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  const size_t words = bytes / part.width / kMarksPerWord + 1;
  if (reader.marks.size() < words) reader.marks.resize(words);
  std::ranges::fill(reader.marks, 0);
  MarkChanged(part.width, part.base, target.image.data() + part.range.offset, bytes, reader.marks.data());
  reader.offsets.clear();
  const auto flush = [&] {
    if (!reader.offsets.empty()) visit({.width = part.width, .offsets = reader.offsets});
    reader.offsets.clear();
  };
  for (size_t word = 0; word < words; ++word) {
    for (uint64_t left = reader.marks[word]; left != 0; left &= left - 1) {
      const size_t element = word * kMarksPerWord + static_cast<size_t>(std::countr_zero(left));
      reader.offsets.push_back(static_cast<uint32_t>(element * part.width));
    }
    if (reader.offsets.size() >= kVisitedAtOnce) flush();
  }
  flush();
  return true;
}

void Changes::State::Read(const ChangedPart& part, ReadPart& read) const {
  if (read.part == &part) return;
  read.part = &part;
  read.elements.clear();
  read.known = Visit(part, read.reader, [&read](const ChangedElements& changed) {
    read.elements.insert(read.elements.end(), changed.offsets.begin(), changed.offsets.end());
  });
}

// Calls of Of on several threads share the memory of what was read: each takes one for its time.
std::unique_ptr<ReadPart> Changes::State::Take(const ChangedPart* part) {
  absl::MutexLock lock(&mutex);
  if (idle.empty()) return std::make_unique<ReadPart>();
  const auto has_it = std::ranges::find(idle, part, [](const auto& read) { return read->part; });
  if (has_it != idle.end()) std::swap(*has_it, idle.back());
  std::unique_ptr<ReadPart> taken = std::move(idle.back());
  idle.pop_back();
  return taken;
}

void Changes::State::GiveBack(std::unique_ptr<ReadPart> read) {
  absl::MutexLock lock(&mutex);
  idle.push_back(std::move(read));
}

// Gives the whole tensor (`whole`) where indices would take more than the bytes that they save, and for types
// narrower than a byte, of which an element has no address.
TensorChanges Changes::Of(size_t tensor) const {
  State& state = *state_;
  const ByteRange place = state.target.places[tensor];
  const uint32_t bits =
      FindDType(state.target.manifest->layout().tensors[state.target.tensors[tensor]].dtype)->bits;
  const uint64_t element_bytes = std::max(bits / 8, 1u);
  const uint64_t max_indices = bits < 8 ? 0 : place.bytes / element_bytes / kMinUnchangedPerChanged;
  TensorChanges changes;
  auto part = std::ranges::partition_point(state.parts, [&](const ChangedPart& one) {
    return one.range.offset + one.range.bytes <= place.offset;
  });
  if (part == state.parts.end()) return changes;
  std::unique_ptr<ReadPart> read = state.Take(&*part);
  const absl::Cleanup give_back = [&] { state.GiveBack(std::move(read)); };
  for (; part != state.parts.end() && part->range.offset < place.offset + place.bytes; ++part) {
    state.Read(*part, *read);
    if (!read->known) return {.whole = true};
    // Offsets in the part, of the tensor's bytes.
    const uint64_t begin = std::max(place.offset, part->range.offset) - part->range.offset;
    const uint64_t end =
        std::min(place.offset + place.bytes, part->range.offset + part->range.bytes) - part->range.offset;
    for (auto it = std::ranges::lower_bound(read->elements, begin); it != read->elements.end() && *it < end;
         ++it) {
      const auto index = static_cast<int64_t>((part->range.offset + *it - place.offset) / element_bytes);
      // A complex number is two elements of a difference.
      if (changes.indices.empty() || changes.indices.back() != index) changes.indices.push_back(index);
    }
    if (changes.indices.size() > max_indices) return {.whole = true};
  }
  changes.values.resize(changes.indices.size() * element_bytes);
  const std::byte* const from = state.target.image.data() + place.offset;
  std::byte* to = changes.values.data();
  for (const int64_t index : changes.indices) {
    std::memcpy(to, from + static_cast<uint64_t>(index) * element_bytes, element_bytes);
    to += element_bytes;
  }
  return changes;
}

}  // namespace tensorcast::client
