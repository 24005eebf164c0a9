"""Kits: what a party needs to join a federation, in one file from the server's operator.

    party      request.make_request_file   keys on its machine; NAME.request has the public halves
    operator   kit.write_kit               NAME.kit.zip: certificates, cards, units, README, signed
    party      install.install_kit         the signature is checked, certificates go to their keys
    anybody    preflight.examine           what will fail on this machine, before it fails

Private keys never travel. The commands of the three roles enter here.
"""
