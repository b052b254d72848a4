// The flight recorder over gRPC: the Records service of daemons and of the global store, and the values of
// its messages. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "otel/api/flight_recorder.h"
#include "proto/records.pb.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace tensorcast::rpc {

// Max bytes of all spans, and also max bytes of all log lines, in the answer about one trace.
inline constexpr size_t kMaxTraceBytes = size_t{256} << 10;

// A process's description of itself for an operator.
struct ProcessFacts {
  std::string role;
  std::string version;
  std::string configuration;  // YAML, without secrets
};

v1::RecordedSlice ToProto(const otel::RecordedSlice& slice);
// Converts a message of another process; spans without a context are left out.
otel::RecordedSlice FromProto(const v1::RecordedSlice& slice);

// `runner` must outlive the server with which the service is registered.
std::unique_ptr<grpc::Service> MakeRecordsService(ProcessFacts facts, TaskRunner* runner);

}  // namespace tensorcast::rpc
