#include "python/src/connection.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "absl/time/time.h"
#include "base/status.h"
#include "client/daemon_address.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tensorcast::python {
namespace {

Call Connect(const std::string& daemon, double connect_timeout_s, double wait_s,
             const client::ClientCertificates& certificates) {
  // gRPC does not survive a fork: of all processes that have a copy of it, the first that used it may.
  static const ProcessMark first;
  first.Check();
  // The address and the certificates are copied: the work runs without the GIL, after this function has
  // returned.
  return Call(
      [=](const RequestContext& context, const Call::Listener&) {
        return Made(Connection::Open({.daemon = daemon,
                                      .certificates = certificates,
                                      .connect_timeout = absl::Seconds(connect_timeout_s),
                                      .wait_for_daemon = absl::Seconds(wait_s),
                                      .cancellation = context.cancellation}),
                    [](std::unique_ptr<Connection> connection) {
                      return nb::cast(Client{.connection = LeftAloneAfterFork(std::move(connection))});
                    });
      },
      // The call has no deadline of its own: the timeouts above bound it.
      SteadyTime::InfiniteFuture(), /*traceparent=*/"");
}

void BindOptions(nb::module_& module) {
  nb::class_<CallOptions>(
      module, "CallOptions",
      "The options of calls. The timeout begins now. Calls with the same options share it.")
      .def(
          "__init__",
          [](CallOptions* options, std::optional<double> timeout, const std::string& traceparent) {
            new (options) CallOptions{.traceparent = traceparent};
            if (timeout.has_value()) options->deadline = SteadyNow() + absl::Seconds(*timeout);
          },
          nb::arg("timeout") = nb::none(), nb::arg("traceparent") = "");
  nb::class_<client::ClientCertificates>(module, "Certificates",
                                         "PEM files that make connections to host:port mutual TLS.")
      .def(
          "__init__",
          [](client::ClientCertificates* certificates, const std::string& ca, const std::string& certificate,
             const std::string& key, const std::string& trust_domain) {
            new (certificates) client::ClientCertificates{
                .ca = ca, .certificate = certificate, .key = key, .trust_domain = trust_domain};
          },
          nb::arg("ca") = "", nb::arg("certificate") = "", nb::arg("key") = "", nb::arg("trust_domain") = "");
  // The mapping is copy-on-write, since libraries such as torch know no read-only arrays: a write takes a
  // page of this process's own.
  nb::class_<client::GetOptions>(module, "GetOptions", "The options of a get. Arrays are copy-on-write.")
      .def("__init__", [](client::GetOptions* get) { new (get) client::GetOptions{.copy_on_write = true}; })
      .def_rw("location", &client::GetOptions::location)
      .def_rw("lane", &client::GetOptions::lane)
      .def_rw("wait_for_space", &client::GetOptions::wait_for_space)
      .def_rw("attach", &client::GetOptions::attach)
      .def_rw("tensors", &client::GetOptions::tensors)
      .def_rw("confirmed", &client::GetOptions::confirmed)
      .def_rw("pin", &client::GetOptions::pin)
      .def_rw("advance", &client::GetOptions::advance);
  nb::class_<client::PutOptions>(module, "PutOptions", "The options of a put or an import.")
      .def(nb::init<>())
      .def_rw("key", &client::PutOptions::key)
      .def_rw("expected_revision", &client::PutOptions::expected_revision)
      .def_rw("keep", &client::PutOptions::keep)
      .def_rw("durable", &client::PutOptions::durable)
      .def_rw("archive", &client::PutOptions::archive)
      .def_rw("location", &client::PutOptions::location)
      .def_rw("wait_for_space", &client::PutOptions::wait_for_space)
      .def_rw("verify", &client::PutOptions::verify)
      .def_rw("files", &client::PutOptions::files)
      .def_rw("files_at", &client::PutOptions::files_at)
      .def_rw("base", &client::PutOptions::base)
      .def_rw("require_difference", &client::PutOptions::require_difference)
      .def_rw("pin", &client::PutOptions::pin);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(client::ClientOptions options) {
  auto connection = std::unique_ptr<Connection>(new Connection(std::move(options)));
  TC_ASSIGN_OR_RETURN(connection->plain_, client::Client::Connect(connection->options_));
  // The connections that are made later are to the daemon that was found now.
  connection->options_.daemon = connection->plain_->daemon();
  return connection;
}

// Made by the first call that needs it. The runtime is made under the lock, so that there is one; the client
// is connected without the lock, and of two that are connected at once the first stays.
absl::StatusOr<client::Client*> Connection::WithGpus(const Cancellation& cancellation) {
  client::ClientOptions options = options_;
  options.cancellation = cancellation;  // of the call that wants it, not of the one that connected first
  {
    absl::MutexLock lock(&mutex_);
    if (with_gpus_ != nullptr) return with_gpus_.get();
    if (devices_ == nullptr) {
      TC_ASSIGN_OR_RETURN(devices_, CreateCudaRuntime());
    }
    options.devices = devices_.get();
  }
  options.wait_for_daemon = absl::ZeroDuration();  // the daemon was there when the first connection was made
  TC_ASSIGN_OR_RETURN(std::unique_ptr<client::Client> connected, client::Client::Connect(options));
  absl::MutexLock lock(&mutex_);
  if (with_gpus_ == nullptr) with_gpus_ = std::move(connected);
  return with_gpus_.get();
}

absl::StatusOr<client::AdminClient*> Connection::Admin(const Cancellation& cancellation) {
  // The client is connected without the lock, as WithGpus does it, and the first of two stays.
  {
    absl::MutexLock lock(&mutex_);
    if (admin_ != nullptr) return admin_.get();
  }
  client::ClientOptions options = options_;
  options.cancellation = cancellation;
  options.wait_for_daemon = absl::ZeroDuration();  // the daemon was there when the first connection was made
  TC_ASSIGN_OR_RETURN(std::unique_ptr<client::AdminClient> connected, client::AdminClient::Connect(options));
  absl::MutexLock lock(&mutex_);
  if (admin_ == nullptr) admin_ = std::move(connected);
  return admin_.get();
}

absl::StatusOr<client::VersionsClient*> Connection::Versions(const Cancellation& cancellation) {
  // As Admin.
  {
    absl::MutexLock lock(&mutex_);
    if (versions_ != nullptr) return versions_.get();
  }
  client::ClientOptions options = options_;
  options.cancellation = cancellation;
  options.wait_for_daemon = absl::ZeroDuration();
  TC_ASSIGN_OR_RETURN(std::unique_ptr<client::VersionsClient> connected,
                      client::VersionsClient::Connect(options));
  absl::MutexLock lock(&mutex_);
  if (versions_ == nullptr) versions_ = std::move(connected);
  return versions_.get();
}

absl::StatusOr<client::LiveClient*> Connection::Live(const Cancellation& cancellation) {
  // As Admin.
  {
    absl::MutexLock lock(&mutex_);
    if (live_ != nullptr) return live_.get();
  }
  client::ClientOptions options = options_;
  options.cancellation = cancellation;
  options.wait_for_daemon = absl::ZeroDuration();
  TC_ASSIGN_OR_RETURN(std::unique_ptr<client::LiveClient> connected, client::LiveClient::Connect(options));
  absl::MutexLock lock(&mutex_);
  if (live_ == nullptr) live_ = std::move(connected);
  return live_.get();
}

nb::class_<Client> BindConnection(nb::module_& module) {
  BindOptions(module);
  nb::class_<Client> type(module, "Client", "A connection to a store daemon. Every method starts a call.");
  type.def_prop_ro(
      "daemon", [](const Client& client) { return client.connection->plain().daemon(); },
      "The daemon's address.");
  module.def(
      "find_daemon",
      [](const std::string& named) {
        const absl::StatusOr<std::string> found = client::FindDaemon(named);
        if (!found.ok()) Raise(found.status());
        return *found;
      },
      nb::arg("named"), "The address of the named daemon. Empty: of this host's daemon.");
  module.def("connect", &Connect, nb::arg("daemon"), nb::arg("connect_timeout"), nb::arg("wait"),
             nb::arg("certificates"), "A call that returns a Client.");
  return type;
}

}  // namespace tensorcast::python
