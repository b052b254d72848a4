// Live leases, as methods of Client.
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "client/live.h"
#include "python/src/connection.h"
#include "python/src/replica.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

using Text = const std::string&;

absl::StatusOr<Maker> MakeLive(const Caller& to, const client::Replica& replica) {
  TC_ASSIGN_OR_RETURN(client::LiveClient* const live, to.connection->Live(to.context.cancellation));
  return Made(live->MakeLive(to.context, replica), [](const std::string& hold) { return nb::cast(hold); });
}

// What Python reads of the replica changes with the GIL, when the result is asked for.
absl::StatusOr<Maker> Commit(const Caller& to, Text hold, Text artifact_id, absl::Duration wait,
                             const std::shared_ptr<const client::Replica>& replica) {
  TC_ASSIGN_OR_RETURN(client::LiveClient* const live, to.connection->Live(to.context.cancellation));
  return Made(live->Commit(to.context, hold, artifact_id, wait, *replica),
              [replica](const client::LiveClient::Committed& committed) {
                // Until here the replica describes itself as the previous version.
                client::LiveClient::Adopt(committed, *replica);
                return nb::cast(committed.hold);
              });
}

}  // namespace

void BindLive(nb::class_<Client>& type) {
  type.def(
      "make_live",
      [](const Client& client, const nb::object& replica, const CallOptions& options) {
        return Start(client, options,
                     [held = ReplicaOf(replica)](const Caller& to) { return MakeLive(to, *held); });
      },
      nb::arg("replica"), nb::kw_only(), nb::arg("options"),
      "A call that makes the replica's lease live, and returns the id (hold) of the live lease.");
  type.def("prepare_version",
           Method<std::string, std::string>(
               [](const Caller& to, Text hold, Text artifact_id) -> absl::StatusOr<Maker> {
                 TC_ASSIGN_OR_RETURN(client::LiveClient* const live,
                                     to.connection->Live(to.context.cancellation));
                 return Made(live->Prepare(to.context, hold, artifact_id));
               }),
           nb::arg("hold"), nb::arg("artifact_id"), nb::kw_only(), nb::arg("options"),
           "A call that prepares the version for the replica of the hold.");
  type.def(
      "commit_version",
      [](const Client& client, const nb::object& replica, const std::string& hold,
         const std::string& artifact_id, double wait, const CallOptions& options) {
        return Start(client, options,
                     [held = ReplicaOf(replica), hold, artifact_id, seconds = absl::Seconds(wait)](
                         const Caller& to) { return Commit(to, hold, artifact_id, seconds, held); });
      },
      nb::arg("replica"), nb::arg("hold"), nb::arg("artifact_id"), nb::kw_only(), nb::arg("wait"),
      nb::arg("options"),
      "A call that waits at most `wait` seconds until all holders of the replica commit, and then changes\n"
      "the replica to the version. Returns the next hold.");
}

}  // namespace tensorcast::python
