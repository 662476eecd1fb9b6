#!/bin/sh
# Makes the secrets of docker-compose.yml: a random password for each login,
# and the URLs that the programs read. What exists is kept, so that a password
# of your own can be put there first. A URL is made from the password beside
# it, which must then not need percent-encoding.
#
#   sh init-secrets.sh [DIRECTORY]     default: secrets beside this script
#
# The files are readable by all and the directory by its owner only: the
# containers see the files, whatever their user, and nobody else gets to them.
set -eu

dir=${1:-$(dirname "$0")/secrets}
mkdir -p "$dir"
chmod 0700 "$dir"

# make NAME VALUE writes a secret that does not exist yet.
make() {
	if [ -e "$dir/$1" ]; then
		chmod 0444 "$dir/$1"
		echo "kept  $1"
		return
	fi
	printf '%s\n' "$2" >"$dir/.$1.new"
	chmod 0444 "$dir/.$1.new"
	mv "$dir/.$1.new" "$dir/$1"
	echo "made  $1"
}

# url NAME PASSWORD_NAME PREFIX SUFFIX makes a URL around a password.
url() {
	password=$(cat "$dir/$2")
	case $password in
	*[!A-Za-z0-9._~-]*)
		if [ ! -e "$dir/$1" ]; then
			echo "init-secrets: $2 has characters that a URL needs percent-encoded; write $dir/$1 yourself" >&2
			exit 1
		fi
		;;
	esac
	make "$1" "$3$password$4"
}

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

make postgres_owner_password "$(random)"
make postgres_password "$(random)"
make redis_password "$(random)"
# sslmode=disable: the stores' networks exist on this host only.
url postgres_owner_url postgres_owner_password 'postgres://penstock_owner:' '@postgres:5432/penstock?sslmode=disable'
url postgres_url postgres_password 'postgres://penstock:' '@postgres:5432/penstock?sslmode=disable'
url redis_url redis_password 'redis://:' '@redis:6379/0'
