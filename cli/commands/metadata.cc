// `tensorcast metadata copy`: copies from SQLite to etcd or back, while no global store runs on either.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/server_options.h"
#include "cli/commands/texts.h"
#include "cli/config/message_reader.h"
#include "cli/output/output.h"
#include "global_store/app/etcd_group.h"
#include "global_store/app/global_store_server.h"
#include "global_store/metadata/copy.h"
#include "global_store/metadata/etcd/store.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::cli {
namespace {

using global_store::MetadataStore;

constexpr absl::Duration kPatience = absl::Seconds(10);  // with an etcd that does not answer

struct CopyFlags {
  std::string from;
  std::string to;
};

void AddFlags(Flags& flags, CopyFlags& values) {
  const std::vector<std::string> kinds = {"sqlite", "etcd"};
  flags.Add("from", values.from, "sqlite (global_store.metadata_path) or etcd (global_store.etcd)",
            {.required = true, .choices = kinds});
  flags.Add("to", values.to, "The other store: sqlite or etcd", {.required = true, .choices = kinds});
}

// On etcd it leads while it copies, so that no global store can. The members go in the reverse order: the
// store uses the leadership, and both use the client.
struct OpenStore {
  std::unique_ptr<global_store::etcd::Client> client;
  std::unique_ptr<global_store::etcd::Leadership> leadership;
  std::unique_ptr<MetadataStore> store;
};

absl::StatusOr<OpenStore> OpenOnEtcd(const v1::Config& config) {
  namespace etcd = global_store::etcd;
  config::MessageReader reader(config);
  global_store::EtcdOptions options;
  options.FromConfig(reader);
  options.Validate(reader.findings());
  TC_RETURN_IF_ERROR(reader.findings().ToStatus());
  options.leadership.name = options.leadership.address = "tensorcast metadata copy";
  OpenStore open;
  TC_ASSIGN_OR_RETURN(open.client, etcd::Client::Create(options.client));
  const RequestContext waits = RequestContext::Background(kPatience);
  // The campaign waits for a leader to go. Here a leader is a reason to stop, so the first one that is seen
  // cancels the wait.
  std::string leader;
  absl::StatusOr<std::unique_ptr<etcd::Leadership>> leads = etcd::Leadership::Campaign(
      open.client.get(), options.leadership, waits, [&](const etcd::StoreAddress& other) {
        leader = other.address;
        waits.cancellation.Cancel();
      });
  // The leader is reported before the status is looked at: where there is a leader, the status says only that
  // the wait was cancelled.
  if (!leader.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("metadata copy: the global store ", leader,
                     " leads on this etcd; stop all global stores before a copy"));
  }
  if (absl::IsDeadlineExceeded(leads.status())) {
    return absl::UnavailableError(absl::StrCat("metadata copy: etcd at ", open.client->endpoints(),
                                               " did not give the lead to this command in time (",
                                               leads.status().message(),
                                               "); check the keys global_store.etcd.*, and etcd's log"));
  }
  TC_ASSIGN_OR_RETURN(open.leadership, std::move(leads));
  open.store = etcd::MakeStore(open.client.get(), open.leadership.get(), options.leadership.prefix);
  return open;
}

// The metadata store locks SQLite's file, so no global store can have it open during the copy.
absl::StatusOr<OpenStore> Open(const std::string& kind, bool reads, const v1::Config& config) {
  if (kind == "etcd") return OpenOnEtcd(config);
  const std::string& path = config.global_store().metadata_path();
  // Opened, it would be made.
  if (reads && !std::filesystem::exists(path)) {
    return absl::NotFoundError(
        absl::StrCat("metadata copy: the database ", path,
                     " does not exist; set global_store.metadata_path to the database of the global store"));
  }
  TC_RETURN_IF_ERROR(MakeMetadataPrivate(path));
  OpenStore open;
  TC_ASSIGN_OR_RETURN(open.store, global_store::OpenMetadataStore(kind, path));
  return open;
}

absl::Status Copy(const CommonFlags& common, const CopyFlags& flags) {
  if (flags.from == flags.to) {
    return absl::InvalidArgumentError(absl::StrCat("metadata copy: both stores are ", flags.from,
                                                   "; name sqlite for one and etcd for the other"));
  }
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(common));
  // The source first: where it cannot be opened, no empty target is made.
  TC_ASSIGN_OR_RETURN(const OpenStore from, Open(flags.from, /*reads=*/true, config));
  TC_ASSIGN_OR_RETURN(const OpenStore to, Open(flags.to, /*reads=*/false, config));
  TC_ASSIGN_OR_RETURN(const global_store::CopySummary copied,
                      global_store::CopyMetadata(*from.store, *to.store));
  return Show(
      common,
      {{"artifacts", copied.artifacts},
       {"keys", copied.keys},
       {"nodes", copied.nodes},
       {"tasks", copied.tasks},
       {"manifest_bytes", copied.manifest_bytes},
       {"written", copied.written}},
      absl::StrCat(copied.artifacts, " artifacts (", FormatBytes(copied.manifest_bytes), " of manifests), ",
                   copied.keys, " keys, ", copied.nodes, " nodes and ", copied.tasks,
                   " tasks are in both stores; ", copied.written, " of these were written now\n"));
}

}  // namespace

Command MetadataCommand() {
  return {.name = "metadata",
          .help = "Work with the metadata of the global store",
          .commands = {{.name = "copy",
                        .help = "Copy all metadata to the other metadata store, while no global store runs",
                        .role = Role::kSilent,
                        .config_section = "global_store",
                        .bind = Bind(AddFlags, Copy)}}};
}

}  // namespace tensorcast::cli
