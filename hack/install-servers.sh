#!/bin/sh
# Installs the servers that development and tests need: Redis (or Valkey) and
# Postgres. Does nothing and prints nothing when both are there. Installs them
# with apt-get when run as root on Debian or Ubuntu, without starting services
# or creating a database cluster; elsewhere prints what to run and exits 1.
set -eu

packages="redis-server postgresql"
install_line="apt-get install -y --no-install-recommends $packages"

have_redis() {
	command -v redis-server >/dev/null 2>&1 || command -v valkey-server >/dev/null 2>&1
}

# A Postgres server counts when initdb lies next to it.
have_postgres() {
	for program in "$(command -v postgres 2>/dev/null || true)" /usr/lib/postgresql/*/bin/postgres; do
		[ -n "$program" ] && [ -x "$program" ] || continue
		program=$(readlink -f "$program")
		if [ -x "${program%/*}/initdb" ]; then
			return 0
		fi
	done
	return 1
}

if have_redis && have_postgres; then
	exit 0
fi

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	missing=""
	have_redis || missing="redis-server"
	have_postgres || missing="${missing:+$missing and }a Postgres server"
	echo "install-servers: not installed: $missing. As root on Debian or Ubuntu run:" >&2
	echo "  apt-get update && $install_line" >&2
	exit 1
fi

# While the packages install, invoke-rc.d asks this file whether it may start
# services; exit code 101 forbids it. A file that was there is set aside and put
# back, also when the script is interrupted. A run that was killed outright leaves
# the set-aside copy, which the next run restores.
policy=/usr/sbin/policy-rc.d
saved=$policy.penstock-saved
marker="# temporary: written by install-servers.sh"

restore_policy() {
	if [ -f "$policy" ] && grep -qxF "$marker" "$policy"; then
		rm -f "$policy"
	fi
	if [ -e "$saved" ] || [ -L "$saved" ]; then
		mv -f "$saved" "$policy"
	fi
}

restore_policy
trap restore_policy EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -e "$policy" ] || [ -L "$policy" ]; then
	mv -f "$policy" "$saved"
fi
printf '#!/bin/sh\n%s\nexit 101\n' "$marker" >"$policy"
chmod 755 "$policy"

# The postgresql package creates a cluster that nothing here needs, unless this
# file says otherwise. An existing file is the administrator's.
cluster_conf=/etc/postgresql-common/createcluster.conf
if [ ! -e "$cluster_conf" ]; then
	mkdir -p "${cluster_conf%/*}"
	printf 'create_main_cluster = false\n' >"$cluster_conf"
fi

export DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1
apt-get update
# shellcheck disable=SC2086 # a list of packages
apt-get install -y --no-install-recommends $packages

if ! have_redis || ! have_postgres; then
	echo "install-servers: the packages are installed but a server program is not found on PATH or in /usr/lib/postgresql; check the output of apt-get above" >&2
	exit 1
fi
