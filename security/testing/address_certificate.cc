#include "security/testing/address_certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::security::testing {

Identity::Files MakeAddressCertificate(const std::string& folder, const std::string& address) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("server"), -1,
                             -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_EXTENSION* const names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, absl::StrCat("IP:", address).c_str());
  CHECK_EQ(X509_add_ext(certificate.get(), names, -1), 1);
  X509_EXTENSION_free(names);
  CHECK_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);

  Identity::Files files{.certificate = folder + "/server.pem", .key = folder + "/server.key"};
  const auto write = [](const std::string& path, const auto& pem) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "we"), fclose);
    CHECK(file != nullptr) << path;
    CHECK_EQ(pem(file.get()), 1);
  };
  write(files.certificate, [&](FILE* file) { return PEM_write_X509(file, certificate.get()); });
  write(files.key, [&](FILE* file) {
    return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return files;
}

}  // namespace tensorcast::security::testing
