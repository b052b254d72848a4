// Messages of other processes: the first byte chooses which, the rest is its protobuf encoding. Under test is
// what we make of a message that protobuf takes, however odd its fields.
#include "absl/log/check.h"
#include "base/steady_time.h"
#include "google/protobuf/stubs/logging.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {
namespace {

v1::Location Say(const Location& location) { return rpc::ToProto(location); }
v1::Replica Say(const ReplicaInfo& replica) { return rpc::ToProto(replica); }
v1::TransferReport Say(const TransferReport& report) { return rpc::ToProto(report); }

// What was understood can be said, is understood again, and means the same.
template <typename Message>
void Understand(std::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto value = rpc::FromProto(message);
  if (!value.ok()) {
    CHECK(absl::IsInvalidArgument(value.status())) << value.status();
    return;
  }
  const Message said = Say(*value);
  const auto again = rpc::FromProto(said);
  CHECK_OK(again.status()) << said.DebugString();
  CHECK_EQ(Say(*again).SerializeAsString(), said.SerializeAsString()) << said.DebugString();
}

// Every one means something, if only that it is unknown.
void UnderstandError(std::string_view bytes) {
  v1::Status message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const absl::Status error = rpc::FromProto(message);
  CHECK_EQ(error.ok(), message.code() == 0);
  CHECK_EQ(rpc::FromProto(rpc::ToProto(error)), error);
}

template <typename Message>
std::string Seed(char kind, const Message& message) {
  return kind + message.SerializeAsString();
}

}  // namespace

void TestOneInput(std::string_view input) {
  // protobuf logs each string that is not UTF-8.
  [[maybe_unused]] static auto* const silent = google::protobuf::SetLogHandler(nullptr);
  if (input.empty()) return;
  switch (input.front() % 4) {
    case 0:
      return Understand<v1::Location>(input.substr(1));
    case 1:
      return Understand<v1::Replica>(input.substr(1));
    case 2:
      return Understand<v1::TransferReport>(input.substr(1));
    default:
      return UnderstandError(input.substr(1));
  }
}

std::vector<std::string> Seeds() {
  const ReplicaInfo replica{.id = "r",
                            .artifact_id = "tc2:a",
                            .node_id = "node",
                            .location = {LocationKind::kGpu, 3},
                            .device_uuid = "GPU-3",
                            .state = ReplicaState::kFilling,
                            .image_bytes = 1 << 20,
                            .chunks_total = 4,
                            .chunks_present = 1,
                            .pinned = true,
                            .last_used = SteadyTime() + absl::Milliseconds(1'700'000'000'123)};
  TransferReport report;
  report.transfer_id = "t";
  report.start = SteadyTime() + absl::Seconds(1'700'000'000);
  report.end = report.start + absl::Milliseconds(5);
  report.stages.push_back({.stage = Stage::kVerify, .busy = absl::Milliseconds(3)});
  report.status = absl::DataLossError("chunk 3");
  v1::Replica hostile = rpc::ToProto(replica);
  hostile.mutable_last_used()->set_seconds(std::numeric_limits<int64_t>::max());
  hostile.mutable_last_used()->set_nanos(-1);
  absl::Status error = absl::UnavailableError("peer: gone");
  error.SetPayload("type.googleapis.com/tensorcast.v1.DoNotRetry", absl::Cord());
  v1::Status unknown = rpc::ToProto(error);
  unknown.set_code(-7);
  return {Seed(3, rpc::ToProto(error)),
          Seed(3, unknown),
          Seed(0, rpc::ToProto(Location{LocationKind::kGpu, 7})),
          Seed(1, rpc::ToProto(replica)),
          Seed(2, rpc::ToProto(report)),
          Seed(1, hostile)};
}

}  // namespace tensorcast::fuzz
